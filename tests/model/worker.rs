//! What a worker does: the handlers of `src/jobs/`, with the product's own decisions.

use boxrun::runs::decide::{
    Activity, CallFailure, CleanupSeen, DispatchSeen, Effect, Fault, LogRead, PollSeen, ProbeSeen, Step as Decision,
    StopSeen, When, after_cleanup, after_dispatch, after_poll, after_probe, after_stop, duty, without_claim,
};
use boxrun::runs::output::Released;
use boxrun::runs::update::RunUpdate;
use boxrun::runs::{Run, RunState};
use chrono::TimeDelta;

use super::machine::{Answer, Kind, Stage};
use super::protocol::Protocol;
use super::row::Row;
use super::world::{Job, RUNS, Request, Step, Worker, World};

/// What became of writing an outcome.
enum Written {
    Yes,
    Stale,
    Fenced,
}

impl Protocol {
    /// `claim.sql`, then the look at the run (`jobs/mod.rs`, `handle`). Polls and the like are sent at once: between the
    /// look and the request there is nothing that another could see.
    pub(super) fn claim(&self, world: &mut World, worker: usize, run: usize) {
        let (Some(row), Some(job)) = (world.rows[run], &mut world.jobs[run]) else {
            return;
        };
        world.history[run].taken_over |= job.lapsed;
        *job = Job {
            holder: Some(worker),
            ..Job::NEW
        };
        let step = match duty(&row.run()) {
            None => {
                world.jobs[run] = None;
                return;
            }
            Some(Activity::Start) if !row.claimed => Step::LookForPredecessor,
            Some(Activity::Start) => {
                if !self.note_probe(world, worker, run) {
                    return;
                }
                Step::Wait(Kind::Probe)
            }
            Some(Activity::Poll) => Step::Wait(Kind::Poll),
            Some(Activity::Stop) if !row.claimed => Step::EndUnsent,
            Some(Activity::Cleanup) if row.end_verified => {
                *job = Job {
                    resting: true,
                    ..Job::NEW
                };
                return;
            }
            Some(Activity::Stop | Activity::Cleanup) => Step::Wait(Kind::Stop),
        };
        if let Step::Wait(kind) = step {
            send(world, worker, run, kind);
        }
        let row = world.rows[run].unwrap_or(row);
        world.workers[worker] = Worker::Busy { run, row, step };
    }

    /// `jobs/start.rs`, `note_probe`.
    fn note_probe(&self, world: &mut World, worker: usize, run: usize) -> bool {
        let now = world.rows[run].expect("the run was admitted");
        let update = RunUpdate::probe_attempted(&now.run());
        now.probed || matches!(self.write(world, worker, run, &update), Written::Yes)
    }

    pub(super) fn work(&self, world: &mut World, worker: usize) {
        let Worker::Busy { run, row, step } = world.workers[worker] else {
            return;
        };
        match step {
            Step::LookForPredecessor => self.look_for_predecessor(world, worker, run),
            Step::Claim => self.claim_dispatch(world, worker, run),
            Step::SendDispatch => {
                world.history[run].dispatches += 1;
                send(world, worker, run, Kind::Dispatch);
                go_on(world, worker, Step::Wait(Kind::Dispatch));
            }
            Step::Wait(_) => {}
            Step::EndUnsent => self.commit(world, worker, run, row, |run| without_claim(run, None)),
            // Only without the fence: the product's decisions refuse it, and the handler ends.
            Step::Commit(Kind::Dispatch, _) if row.is_over() => idle(world, worker),
            Step::Commit(kind, answer) => {
                let killed = kind == Kind::Stop && matches!(answer, Answer::Killed { .. }) && !row.is_over();
                self.commit(world, worker, run, row, |run| self.decide(run, kind, answer));
                let ended_so = world.rows[run].is_some_and(|row| {
                    matches!(row.state, RunState::Cancelled | RunState::TimedOut) && row.end_verified
                });
                world.history[run].called_killed |= killed && ended_so;
                world.history[run].found_by_probe |= kind == Kind::Probe && answer == Answer::Present;
            }
        }
    }

    /// `jobs/start.rs`, `earlier_run_lives`.
    fn look_for_predecessor(&self, world: &mut World, worker: usize, run: usize) {
        let may_live = |row: &Row| {
            matches!(row.state, RunState::Cancelled | RunState::TimedOut | RunState::Lost)
                && !row.end_verified
                && row.claimed
        };
        let mut waits = false;
        for other in (0..RUNS).filter(|other| *other != run) {
            if world.rows[other].is_some_and(|row| may_live(&row)) {
                let job = world.jobs[other].get_or_insert(Job::NEW);
                job.resting = false;
                waits = true;
            }
        }
        if waits && self.rules.predecessor {
            self.release(world, worker, run, Some(Job::NEW));
        } else if self.rules.claim_before_dispatch {
            go_on(world, worker, Step::Claim);
        } else {
            go_on(world, worker, Step::SendDispatch);
        }
    }

    /// `jobs/start.rs`, `claim`.
    fn claim_dispatch(&self, world: &mut World, worker: usize, run: usize) {
        let now = world.rows[run].expect("the run was admitted");
        if !now.claimed {
            match self.write(world, worker, run, &RunUpdate::claim_dispatch(&now.run())) {
                Written::Yes => {}
                // A cancel came first.
                Written::Stale => return self.hand_to_duty(world, worker, run, &now),
                Written::Fenced => return idle(world, worker),
            }
        } else if !self.holds(world, worker, run) {
            return idle(world, worker);
        }
        let row = world.rows[run].expect("the run was admitted");
        let step = Step::SendDispatch;
        world.workers[worker] = Worker::Busy { run, row, step };
    }

    /// `jobs/commit.rs`, `step`.
    fn commit(&self, world: &mut World, worker: usize, run: usize, snapshot: Row, decide: impl Fn(&Run) -> Decision) {
        let mut row = snapshot;
        loop {
            let decision = decide(&row.run());
            let next = match (decision.next.activity, decision.next.when) {
                (None, _) => None,
                (Some(_), When::Retention) => Some(Job {
                    resting: true,
                    ..Job::NEW
                }),
                (Some(_), _) => Some(Job::NEW),
            };
            let written = if decision.update.is_quiet() {
                if self.holds(world, worker, run) {
                    Written::Yes
                } else {
                    Written::Fenced
                }
            } else {
                self.write(world, worker, run, &decision.update)
            };
            match written {
                Written::Yes => return self.release(world, worker, run, next),
                Written::Fenced => return idle(world, worker),
                Written::Stale => {}
            }
            let now = world.rows[run].expect("the run was admitted");
            if now.state != snapshot.state || now.log_offset != snapshot.log_offset || now == row {
                return self.hand_to_duty(world, worker, run, &now);
            }
            row = now;
        }
    }

    /// `update.sql`, in one transaction with the fence.
    fn write(&self, world: &mut World, worker: usize, run: usize, update: &RunUpdate) -> Written {
        let now = world.rows[run].expect("the run was admitted");
        let current = now.run();
        let Some(written) = update.applied_to(&current, current.read_at) else {
            return Written::Stale;
        };
        if !self.holds(world, worker, run) {
            return Written::Fenced;
        }
        let reason = update.failure_reason().or(now.reason);
        world.write(run, Row::of(&written, reason));
        Written::Yes
    }

    fn holds(&self, world: &World, worker: usize, run: usize) -> bool {
        !self.rules.fence || world.jobs[run].is_some_and(|job| job.holder == Some(worker))
    }

    /// `finish.sql`.
    fn release(&self, world: &mut World, worker: usize, run: usize, next: Option<Job>) {
        if self.holds(world, worker, run) && world.jobs[run].is_some() {
            world.jobs[run] = next;
        }
        idle(world, worker);
    }

    fn hand_to_duty(&self, world: &mut World, worker: usize, run: usize, row: &Row) {
        let next = World::duty(row).map(|_| Job::NEW);
        self.release(world, worker, run, next);
    }

    fn decide(&self, run: &Run, kind: Kind, answer: Answer) -> Decision {
        match kind {
            Kind::Dispatch => after_dispatch(run, self.dispatch_seen(answer)),
            Kind::Probe => after_probe(run, probe_seen(answer)),
            Kind::Poll => after_poll(run, poll_seen(run, answer)),
            Kind::Stop if run.state.is_terminal() => {
                let seen = match stop_seen(run, answer) {
                    StopSeen::Absent | StopSeen::Killed { .. } | StopSeen::EndedBefore { .. } => {
                        CleanupSeen::NothingLeft
                    }
                    StopSeen::StillAlive => CleanupSeen::StillAlive,
                    StopSeen::Failed(failure) => CleanupSeen::Failed(failure),
                };
                after_cleanup(run, seen, TimeDelta::days(1))
            }
            Kind::Stop => after_stop(run, stop_seen(run, answer)),
        }
    }

    fn dispatch_seen(&self, answer: Answer) -> DispatchSeen {
        match answer {
            Answer::Started => DispatchSeen::Started { pid: 4242 },
            Answer::AlreadyThere => DispatchSeen::AlreadyThere,
            Answer::Tombstone => DispatchSeen::Tombstone,
            Answer::None if !self.rules.doubt => DispatchSeen::Failed(failure(Answer::NotTaken)),
            other => DispatchSeen::Failed(failure(other)),
        }
    }
}

fn probe_seen(answer: Answer) -> ProbeSeen {
    match answer {
        Answer::Absent => ProbeSeen::Absent,
        Answer::Present => ProbeSeen::Present { pid: Some(4242) },
        other => ProbeSeen::Failed(failure(other)),
    }
}

fn poll_seen(run: &Run, answer: Answer) -> PollSeen {
    match answer {
        Answer::Absent => PollSeen::Absent,
        Answer::Polled {
            alive,
            exit,
            killed,
            never_started,
            restarted,
            log,
        } => PollSeen::Present {
            log: log_read(run, log),
            exit,
            killed,
            alive,
            never_started,
            restarted,
        },
        other => PollSeen::Failed(failure(other)),
    }
}

fn stop_seen(run: &Run, answer: Answer) -> StopSeen {
    match answer {
        Answer::Absent => StopSeen::Absent,
        Answer::Killed { log } => StopSeen::Killed {
            log: Some(log_read(run, log)),
        },
        Answer::EndedBefore { exit, log } => StopSeen::EndedBefore {
            exit,
            log: Some(log_read(run, log)),
        },
        other => StopSeen::Failed(failure(other)),
    }
}

/// The log from the run's offset on, read whole; a line counts as a byte.
fn log_read(run: &Run, size: u8) -> LogRead {
    let size = i64::from(size);
    let released = Released {
        log_bytes: (size - run.log_offset).max(0),
        ..Released::nothing()
    };
    LogRead {
        size,
        read: released.log_bytes,
        last: released.clone(),
        released,
    }
}

fn failure(answer: Answer) -> CallFailure {
    let (effect, code) = match answer {
        Answer::NotTaken => (Effect::MaySendAgain, "box_unreachable"),
        Answer::BoxStopped => (Effect::DidNotRun, "box_stopped"),
        _ => (Effect::MayHaveRun, "box_unreachable"),
    };
    let fault = Fault {
        code,
        text: String::new(),
        retry_after: None,
    };
    CallFailure { effect, fault }
}

fn send(world: &mut World, worker: usize, run: usize, kind: Kind) {
    world.requests.push(Request {
        run,
        kind,
        stage: Stage::Sent,
        asker: Some(worker),
        doubled: false,
    });
}

fn go_on(world: &mut World, worker: usize, next: Step) {
    if let Worker::Busy { step, .. } = &mut world.workers[worker] {
        *step = next;
    }
}

fn idle(world: &mut World, worker: usize) {
    world.workers[worker] = Worker::Idle;
}
