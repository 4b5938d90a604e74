//! The promises, checked run by run against what really happened.

use boxrun::ids::RunId;
use boxrun::runs::{Run, RunState};
use chrono::TimeDelta;

use crate::evidence::{Archive, Evidence};
use crate::faults::LoggedFault;
use crate::stage::Stage;
use crate::witness::Told;

/// After its deadline a run has ended within this, outages and frozen workers included.
const DEADLINE_SLACK: TimeDelta = TimeDelta::seconds(60);
/// What a box's end has to do with a run of it is seen this much later at the latest.
const BOX_FAULT_SEEN: TimeDelta = TimeDelta::seconds(60);

/// A promise that was broken.
pub struct Violation {
    pub run: Option<RunId>,
    pub what: String,
}

/// Checks all runs that anybody was told of, and that there are no others.
pub fn check(stage: &Stage, archive: &Archive, living: &[RunId]) -> Vec<Violation> {
    let mut found: Vec<Violation> = stage
        .witness
        .accusations()
        .into_iter()
        .map(|(at, run, what)| Violation {
            run,
            what: format!("{what} ({at})"),
        })
        .collect();
    let faults = stage.faults.entries();
    let runs = stage.witness.runs();
    for (id, told) in runs.iter() {
        let Some(evidence) = archive.runs.get(id) else {
            found.push(Violation {
                run: Some(*id),
                what: "a caller was told of its admission, and it is not there".to_owned(),
            });
            continue;
        };
        let box_faults: Vec<&LoggedFault> = faults
            .iter()
            .filter(|fault| fault.box_id.as_ref() == Some(&told.box_id))
            .collect();
        let case = Case {
            told,
            evidence,
            run: &evidence.run,
            box_fault: box_fault_in_life(&evidence.run, &box_faults),
            alive: living.contains(id),
        };
        found.extend(case.broken().into_iter().map(|what| Violation { run: Some(*id), what }));
    }
    for (id, evidence) in &archive.runs {
        if !runs.contains_key(id) {
            let key = &evidence.run.idempotency_key;
            found.push(Violation {
                run: Some(*id),
                what: format!("nobody was told of it, though every key was asked for until told (key {key})"),
            });
        }
    }
    found
}

/// Whether the run's box was stopped or restarted while the run lived.
fn box_fault_in_life(run: &Run, faults: &[&LoggedFault]) -> bool {
    let end = run.finished_at.unwrap_or(run.read_at);
    faults
        .iter()
        .any(|fault| fault.at >= run.admitted_at - BOX_FAULT_SEEN && fault.at <= end)
}

struct Case<'a> {
    told: &'a Told,
    evidence: &'a Evidence,
    run: &'a Run,
    box_fault: bool,
    /// Processes of it were found at the end.
    alive: bool,
}

impl Case<'_> {
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        self.starts(&mut broken);
        self.end(&mut broken);
        self.states(&mut broken);
        self.output(&mut broken);
        self.secrets(&mut broken);
        self.told(&mut broken);
        broken
    }

    /// Promise 1.
    fn starts(&self, broken: &mut Vec<String>) {
        let evidence = self.evidence;
        if evidence.starts > 1 {
            broken.push(format!("its command started {} times", evidence.starts));
        }
        let requests: Vec<_> = evidence.recorded("request", "dispatch").collect();
        let refused = |number: &serde_json::Value| {
            evidence
                .recorded("refused", "dispatch")
                .any(|line| line["number"] == *number)
        };
        let certain = |line: &&&serde_json::Value| {
            let fault = line["fault"]["kind"].as_str();
            matches!(fault, Some("rate_limited" | "box_starting")) || refused(&line["number"])
        };
        let doubtful = requests.iter().filter(|line| !certain(line)).count();
        if doubtful > 1 {
            broken.push(format!("{doubtful} dispatches that may have run reached the box"));
        }
        if let Some(first) = requests.iter().position(|line| !certain(&line))
            && first + 1 < requests.len()
        {
            broken.push("a dispatch was sent after one that may have run".to_owned());
        }
    }

    /// Promise 2, and that each end has its cause.
    fn end(&self, broken: &mut Vec<String>) {
        let run = self.run;
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                broken.push(format!(
                    "{} ({}): {what}",
                    run.state.as_str(),
                    run.failure_reason.as_deref().unwrap_or("-")
                ));
            }
        };
        let own_status = i16::from(self.told.plan.exit_status);
        let started_once = self.evidence.starts == 1;
        match run.state {
            RunState::Admitted | RunState::Dispatched | RunState::Running => {
                expect(false, "it has not ended though all faults have passed");
                return;
            }
            RunState::Completed => expect(own_status == 0 && started_once, "its command says something else"),
            RunState::Failed => match (run.exit_status, run.failure_reason.as_deref()) {
                (Some(status), _) => {
                    let own = status == own_status && status != 0;
                    // The box's end kills the command before its wrapper.
                    let killed = status >= 128 && self.box_fault;
                    expect(started_once && (own || killed), "its command says something else");
                }
                (None, Some("box_stopped")) => {
                    expect(self.box_fault && self.evidence.starts == 0, "the box was there");
                }
                (None, _) => expect(false, "nothing refused it"),
            },
            RunState::Cancelled => {
                expect(self.told.cancel_sent, "nobody asked for that");
                expect(
                    run.cancellation_requested_at.is_some()
                        && run.cancellation_requested_at <= run.cancellation_effective_at,
                    "its times are in disorder",
                );
            }
            // Faults may last longer than any deadline; that workers get on without them is the finale's to show.
            RunState::TimedOut => expect(run.finished_at >= Some(run.deadline_at), "its deadline had not passed"),
            RunState::Lost => match run.failure_reason.as_deref() {
                Some("dispatch_ambiguous") => expect(self.evidence.starts == 0, "it did start"),
                Some("box_stopped" | "box_restarted" | "process_missing_without_exit_sentinel") => {
                    expect(self.box_fault, "its box was neither stopped nor restarted");
                }
                _ => expect(false, "no fault explains it"),
            },
        }
        let latest = run.deadline_at + DEADLINE_SLACK;
        expect(
            run.finished_at.is_some_and(|at| at <= latest),
            "it ended long after its deadline",
        );
        expect(
            self.evidence.job.as_deref().is_none_or(|kind| kind == "cleanup"),
            "it has a job that is no cleanup",
        );
        expect(!self.alive, "processes of it are left");
    }

    fn states(&self, broken: &mut Vec<String>) {
        for (by, seen) in [("its follower", &self.told.states), ("listeners", &self.told.news)] {
            let mut last: Option<RunState> = None;
            for (at, state) in seen {
                if let Some(last) =
                    last.filter(|last| rank(*state) < rank(*last) || (last.is_terminal() && state != last))
                {
                    broken.push(format!(
                        "{by} saw it {} after {} at {at}",
                        state.as_str(),
                        last.as_str()
                    ));
                }
                last = Some(*state);
            }
            if let Some(last) = last.filter(|last| last.is_terminal() && *last != self.run.state) {
                broken.push(format!(
                    "{by} saw it {}, and it is {}",
                    last.as_str(),
                    self.run.state.as_str()
                ));
            }
        }
    }

    /// Promise 3.
    fn output(&self, broken: &mut Vec<String>) {
        let whole = self.told.plan.output();
        let read = &self.evidence.output;
        let by_itself =
            matches!(self.run.state, RunState::Completed | RunState::Failed) && self.run.exit_status.is_some();
        if !is_window(
            &whole,
            read.output_base_offset,
            &read.output,
            self.run.state.is_terminal(),
        ) {
            broken.push(format!(
                "its output from {} on is not what it printed: {:?}",
                read.output_base_offset,
                shortened(&read.output)
            ));
        }
        let total = i64::try_from(whole.len()).expect("plans are small");
        let cut_by_box = self.box_fault && (self.evidence.has_event("output_cut") || self.run.exit_status >= Some(128));
        if by_itself && read.next_offset != total && !cut_by_box {
            broken.push(format!("{} bytes of {total} were kept of its output", read.next_offset));
        }
        if self.evidence.starts == 0 && read.next_offset > 0 {
            broken.push("it has output and never started".to_owned());
        }
        let mut next = 0;
        for (start, piece) in &self.told.pieces {
            if *start < next {
                broken.push(format!(
                    "its follower was given bytes from {start} on after it had read up to {next}"
                ));
            }
            if !is_window(&whole, *start, piece, true) {
                broken.push(format!(
                    "its follower read at {start} what it did not print: {:?}",
                    shortened(piece)
                ));
            }
            next = start + i64::try_from(piece.len()).expect("output is bounded");
        }
        if self.told.next_offset > read.next_offset {
            broken.push(format!(
                "its follower had read up to {}, and there are {}",
                self.told.next_offset, read.next_offset
            ));
        }
    }

    fn secrets(&self, broken: &mut Vec<String>) {
        let Some(secret) = &self.told.plan.secret else { return };
        let mut texts = self
            .evidence
            .events
            .iter()
            .map(|event| event.detail.to_string())
            .collect::<Vec<_>>();
        texts.push(self.evidence.output.output.clone());
        texts.extend(self.told.pieces.iter().map(|(_, piece)| piece.clone()));
        texts.extend(self.run.last_error.clone());
        if texts.iter().any(|text| text.contains(secret)) {
            broken.push("its secret is in its output or its events".to_owned());
        }
    }

    /// Promise 4.
    fn told(&self, broken: &mut Vec<String>) {
        let run = self.run;
        if run.idempotency_key != self.told.key || run.box_id != self.told.box_id {
            broken.push("it is another run than the one told of".to_owned());
        }
        if let Some(Some(at)) = self.told.cancel_told
            && run.cancellation_requested_at != Some(at)
        {
            broken.push(format!("a caller was told that its cancel was noted at {at}"));
        }
    }
}

fn rank(state: RunState) -> u8 {
    match state {
        RunState::Admitted => 0,
        RunState::Dispatched => 1,
        RunState::Running => 2,
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut | RunState::Lost => 3,
    }
}

/// Whether `text` stands in `whole` at `start`; at its end there may be the half of a character or the sign that what was
/// held back at the end was not released.
fn is_window(whole: &str, start: i64, text: &str, may_end_cut: bool) -> bool {
    let Some(rest) = usize::try_from(start).ok().and_then(|start| whole.get(start..)) else {
        return text.is_empty();
    };
    if rest.starts_with(text) {
        return true;
    }
    let cut = text
        .strip_suffix('\u{fffd}')
        .or_else(|| text.strip_suffix("[REDACTED]"));
    may_end_cut && cut.is_some_and(|cut| rest.starts_with(cut))
}

fn shortened(text: &str) -> String {
    let end = text.char_indices().rev().nth(200).map_or(0, |(at, _)| at);
    format!("…{}", &text[end..])
}
