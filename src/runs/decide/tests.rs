//! What follows from what was observed, as tables: one test a paragraph of the rules.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use sqlx::types::Json;
use uuid::Uuid;

use super::*;
use crate::ids::{ConversationId, RunId};
use crate::runs::Run;
use crate::runs::output::Released;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
}

/// A run in `state`, admitted at 0, with its deadline at 1800, read at 100.
fn run(state: RunState) -> Run {
    let claimed = (state != RunState::Admitted).then(|| at(1));
    Run {
        id: RunId(Uuid::nil()),
        conversation_id: ConversationId(Uuid::nil()),
        box_id: "bx_8bhkse3n".parse().unwrap(),
        principal_type: "user".to_owned(),
        principal_id: Some("u1".to_owned()),
        command: "true".to_owned(),
        idempotency_key: "k".to_owned(),
        cwd: None,
        env: Json(BTreeMap::new()),
        run_directory: "$HOME/x".to_owned(),
        state,
        exit_status: None,
        timed_out: false,
        failure_reason: None,
        pid: None,
        log_offset: 0,
        log_carried: String::new(),
        log_epoch: 0,
        final_log_size: None,
        last_output_offset: 0,
        output_base_offset: 0,
        box_checked_at: None,
        admitted_at: at(0),
        dispatch_attempted_at: claimed,
        probe_attempted_at: None,
        dispatched_at: claimed,
        started_at: None,
        exit_learnt_at: None,
        progressed_at: None,
        finished_at: None,
        cancellation_requested_at: None,
        cancellation_effective_at: None,
        deadline_at: at(1800),
        end_verified_at: None,
        has_secrets: false,
        updated_at: at(1),
        next_poll_at: None,
        last_seen_at: None,
        attempts: None,
        last_error: None,
        last_error_code: None,
        worker: None,
        read_at: at(100),
    }
}

fn claimed() -> Run {
    Run {
        dispatch_attempted_at: Some(at(1)),
        ..run(RunState::Admitted)
    }
}

fn cancelled_at(seconds: i64, run: Run) -> Run {
    Run {
        cancellation_requested_at: Some(at(seconds)),
        ..run
    }
}

fn late(run: Run) -> Run {
    Run {
        read_at: at(1801),
        ..run
    }
}

fn failure(effect: Effect, code: &'static str) -> CallFailure {
    CallFailure {
        effect,
        fault: Fault {
            code,
            text: String::new(),
            retry_after: None,
        },
    }
}

fn text(text: &str) -> Released {
    Released {
        log_bytes: i64::try_from(text.len()).unwrap(),
        text: text.to_owned(),
        ..Released::nothing()
    }
}

fn log(size: i64, read: &str) -> LogRead {
    LogRead {
        size,
        read: i64::try_from(read.len()).unwrap(),
        released: text(read),
        last: text(read),
    }
}

fn present(log: LogRead, exit: Option<u8>, alive: bool) -> PollSeen {
    PollSeen::Present {
        log,
        exit,
        killed: false,
        alive,
        never_started: false,
        restarted: false,
    }
}

/// State, reason, next activity.
fn outcome(step: &Step) -> (RunState, Option<&'static str>, Option<Activity>) {
    (
        step.update.state(),
        step.update.failure_reason().map(FailureReason::as_str),
        step.next.activity,
    )
}

const POLL: Option<Activity> = Some(Activity::Poll);
const START: Option<Activity> = Some(Activity::Start);
const STOP: Option<Activity> = Some(Activity::Stop);
const CLEANUP: Option<Activity> = Some(Activity::Cleanup);

#[test]
fn a_run_needs_what_its_record_says_in_this_order() {
    let exited = |run| Run {
        exit_status: Some(0),
        exit_learnt_at: Some(at(50)),
        ..run
    };
    for (run, expected) in [
        (run(RunState::Admitted), START),
        (claimed(), START),
        (run(RunState::Dispatched), POLL),
        (run(RunState::Running), POLL),
        (cancelled_at(50, run(RunState::Running)), STOP),
        (late(run(RunState::Running)), STOP),
        (late(run(RunState::Admitted)), STOP),
        (late(cancelled_at(50, exited(run(RunState::Running)))), POLL),
        (run(RunState::Lost), CLEANUP),
        (run(RunState::Completed), CLEANUP),
        (
            Run {
                dispatch_attempted_at: None,
                ..run(RunState::Cancelled)
            },
            None,
        ),
    ] {
        assert_eq!(duty(&run), expected, "{run:?}");
    }
}

#[test]
fn a_dispatch_is_never_sent_again_once_it_may_have_run() {
    use DispatchSeen as Seen;
    let failed = |effect, code| Seen::Failed(failure(effect, code));
    for (seen, expected, claim_released) in [
        (Seen::Started { pid: 4242 }, (RunState::Dispatched, None, POLL), false),
        (Seen::AlreadyThere, (RunState::Dispatched, None, POLL), false),
        (
            Seen::Tombstone,
            (RunState::Lost, Some("dispatch_ambiguous"), CLEANUP),
            false,
        ),
        (
            Seen::Refused { what: "disk".into() },
            (RunState::Failed, Some("launch_refused"), CLEANUP),
            false,
        ),
        (
            failed(Effect::MayHaveRun, "box_unreachable"),
            (RunState::Admitted, None, START),
            false,
        ),
        (
            failed(Effect::MaySendAgain, "box_unauthorized"),
            (RunState::Admitted, None, START),
            true,
        ),
        (
            failed(Effect::MaySendAgain, "box_rate_limited"),
            (RunState::Admitted, None, START),
            true,
        ),
        (
            failed(Effect::DidNotRun, "box_stopped"),
            (RunState::Failed, Some("box_stopped"), CLEANUP),
            false,
        ),
        (
            failed(Effect::DidNotRun, "box_gone"),
            (RunState::Failed, Some("box_gone"), CLEANUP),
            false,
        ),
        (
            failed(Effect::DidNotRun, "box_not_found"),
            (RunState::Failed, Some("box_not_found"), CLEANUP),
            false,
        ),
        (
            failed(Effect::DidNotRun, "box_request_refused"),
            (RunState::Failed, Some("box_request_refused"), CLEANUP),
            false,
        ),
    ] {
        let step = after_dispatch(&claimed(), seen.clone());
        assert_eq!(outcome(&step), expected, "{seen:?}");
        assert_eq!(
            step.update == RunUpdate::release_dispatch(&claimed()),
            claim_released,
            "{seen:?}"
        );
    }
}

#[test]
fn a_probe_ends_a_run_only_by_an_answer() {
    use ProbeSeen as Seen;
    for (seen, expected) in [
        (Seen::Absent, (RunState::Lost, Some("dispatch_ambiguous"), CLEANUP)),
        (Seen::Present { pid: None }, (RunState::Dispatched, None, POLL)),
        (
            Seen::Failed(failure(Effect::MayHaveRun, "box_unreachable")),
            (RunState::Admitted, None, START),
        ),
        (
            Seen::Failed(failure(Effect::MaySendAgain, "box_unauthorized")),
            (RunState::Admitted, None, START),
        ),
        (
            Seen::Failed(failure(Effect::MayHaveRun, "box_not_found")),
            (RunState::Admitted, None, START),
        ),
        (
            Seen::Failed(failure(Effect::DidNotRun, "box_not_found")),
            (RunState::Lost, Some("box_not_found"), CLEANUP),
        ),
    ] {
        assert_eq!(outcome(&after_probe(&claimed(), seen.clone())), expected, "{seen:?}");
    }
}

#[test]
fn a_box_that_is_starting_is_waited_for_and_one_that_is_stopped_is_not() {
    let admitted = run(RunState::Admitted);
    for (seen, expected) in [
        (BoxSeen::Starting, (RunState::Admitted, None, START)),
        (BoxSeen::Stopped, (RunState::Failed, Some("box_stopped"), CLEANUP)),
        (
            BoxSeen::Failed(failure(Effect::DidNotRun, "box_not_found")),
            (RunState::Failed, Some("box_not_found"), CLEANUP),
        ),
        (
            BoxSeen::Failed(failure(Effect::MaySendAgain, "box_unauthorized")),
            (RunState::Admitted, None, START),
        ),
    ] {
        assert_eq!(outcome(&after_box_check(&admitted, seen.clone())), expected, "{seen:?}");
    }
}

#[test]
fn a_poll_changes_a_run_only_by_a_whole_answer() {
    let dispatched = run(RunState::Dispatched);
    let unusable = [
        PollSeen::Cut,
        PollSeen::Failed(failure(Effect::MayHaveRun, "box_unreachable")),
        PollSeen::Failed(failure(Effect::MayHaveRun, "box_response_invalid")),
        PollSeen::Failed(failure(Effect::MaySendAgain, "box_unauthorized")),
        PollSeen::Failed(failure(Effect::MaySendAgain, "box_rate_limited")),
        PollSeen::Failed(failure(Effect::MayHaveRun, "box_not_found")),
    ];
    for seen in unusable {
        let step = after_poll(&dispatched, seen.clone());
        assert!(step.update.is_quiet(), "{seen:?}");
        assert_eq!((step.next.activity, step.next.when), (POLL, When::Backoff), "{seen:?}");
    }
}

#[test]
fn a_poll_says_how_a_run_ended() {
    let ended = |never_started, restarted| PollSeen::Present {
        log: log(0, ""),
        exit: None,
        killed: false,
        alive: false,
        never_started,
        restarted,
    };
    for (seen, expected) in [
        (present(log(5, "hello"), None, true), (RunState::Running, None, POLL)),
        (
            present(log(0, ""), Some(0), false),
            (RunState::Completed, None, CLEANUP),
        ),
        (present(log(0, ""), Some(17), false), (RunState::Failed, None, CLEANUP)),
        (
            present(log(9, "hello"), Some(0), false),
            (RunState::Running, None, POLL),
        ),
        (
            PollSeen::Absent,
            (RunState::Lost, Some("run_directory_missing"), CLEANUP),
        ),
        (
            ended(false, false),
            (RunState::Lost, Some("process_missing_without_exit_sentinel"), CLEANUP),
        ),
        (ended(false, true), (RunState::Lost, Some("box_restarted"), CLEANUP)),
        (
            ended(true, false),
            (RunState::Lost, Some("dispatch_ambiguous"), CLEANUP),
        ),
        (
            PollSeen::Failed(failure(Effect::DidNotRun, "box_stopped")),
            (RunState::Lost, Some("box_stopped"), CLEANUP),
        ),
        (
            PollSeen::Failed(failure(Effect::DidNotRun, "box_gone")),
            (RunState::Lost, Some("box_gone"), CLEANUP),
        ),
    ] {
        assert_eq!(
            outcome(&after_poll(&run(RunState::Running), seen.clone())),
            expected,
            "{seen:?}"
        );
    }
}

#[test]
fn a_quiet_poll_of_a_running_run_writes_nothing_but_its_job() {
    let step = after_poll(&run(RunState::Running), present(log(0, ""), None, true));
    assert!(step.update.is_quiet() && step.events.is_empty());
    assert_eq!((step.next.when, step.next.heard), (When::Interval, Heard::Answer));
}

#[test]
fn what_is_waiting_is_read_at_once_while_there_is_progress() {
    let when = |size, read| {
        after_poll(&run(RunState::Running), present(log(size, read), None, true))
            .next
            .when
    };
    assert_eq!(when(10, "hello"), When::Now);
    assert_eq!(when(5, "hello"), When::Interval);
    assert_eq!(when(10, ""), When::Interval);
}

#[test]
fn an_exit_after_a_kill_is_stop_s_to_judge_only_while_somebody_wants_the_end() {
    let killed = PollSeen::Present {
        log: log(0, ""),
        exit: Some(143),
        killed: true,
        alive: false,
        never_started: false,
        restarted: false,
    };
    let running = run(RunState::Running);
    assert_eq!(
        outcome(&after_poll(&running, killed.clone())),
        (RunState::Failed, None, CLEANUP)
    );
    assert_eq!(
        outcome(&after_poll(&cancelled_at(50, running.clone()), killed.clone())),
        (RunState::Running, None, STOP)
    );
    assert_eq!(
        outcome(&after_poll(&late(running), killed)),
        (RunState::Running, None, STOP)
    );
}

#[test]
fn a_known_exit_fixes_the_outcome() {
    let learnt = Run {
        exit_status: Some(0),
        exit_learnt_at: Some(at(90)),
        final_log_size: Some(10),
        log_offset: 5,
        last_output_offset: 5,
        ..cancelled_at(95, run(RunState::Running))
    };
    let outlasted = Run {
        read_at: at(1900),
        ..learnt.clone()
    };
    for (run, seen, expected) in [
        (
            &learnt,
            present(log(10, "world"), Some(0), false),
            (RunState::Completed, None, CLEANUP),
        ),
        (
            &learnt,
            present(log(8, "wor"), Some(0), false),
            (RunState::Completed, None, CLEANUP),
        ),
        (
            &learnt,
            present(log(10, "wor"), Some(0), false),
            (RunState::Running, None, POLL),
        ),
        (&learnt, PollSeen::Absent, (RunState::Completed, None, CLEANUP)),
        (
            &learnt,
            PollSeen::Failed(failure(Effect::DidNotRun, "box_stopped")),
            (RunState::Completed, None, CLEANUP),
        ),
        (
            &learnt,
            PollSeen::Failed(failure(Effect::MayHaveRun, "box_unreachable")),
            (RunState::Running, None, POLL),
        ),
        (
            &outlasted,
            PollSeen::Failed(failure(Effect::MayHaveRun, "box_unreachable")),
            (RunState::Completed, None, CLEANUP),
        ),
    ] {
        assert_eq!(outcome(&after_poll(run, seen.clone())), expected, "{seen:?}");
    }
}

#[test]
fn output_that_can_t_be_read_any_more_is_marked_with_its_size() {
    let learnt = Run {
        exit_status: Some(0),
        exit_learnt_at: Some(at(90)),
        final_log_size: Some(1234),
        ..run(RunState::Running)
    };
    let step = after_poll(&learnt, PollSeen::Absent);
    assert_eq!(
        step.events[0],
        Event::with("output_cut", serde_json::json!({"bytes": 1234}))
    );
}

#[test]
fn a_backlog_is_skipped_to_near_its_end_and_what_is_skipped_is_counted() {
    const MIB: i64 = 1024 * 1024;
    let running = run(RunState::Running);
    let skipped = |seen| after_poll(&running, seen).update.skipped_bytes();
    assert_eq!(skipped(present(log(MIB + 5, "hello"), None, true)), 0);
    assert_eq!(
        skipped(present(log(MIB + 6, "hello"), None, true)),
        MIB + 6 - 256 * 1024
    );
    let step = after_poll(&running, present(log(3 * MIB, "hello"), Some(0), false));
    assert_eq!(outcome(&step), (RunState::Running, None, POLL));
    let bytes = 3 * MIB - 256 * 1024;
    assert_eq!(
        step.events[0],
        Event::with("output_skipped", serde_json::json!({"bytes": bytes}))
    );
    let learnt = Run {
        exit_status: Some(0),
        exit_learnt_at: Some(at(90)),
        final_log_size: Some(2 * MIB),
        ..running.clone()
    };
    let step = after_poll(&learnt, present(log(9 * MIB, "hello"), Some(0), false));
    assert_eq!(step.update.skipped_bytes(), 2 * MIB - 256 * 1024);
}

#[test]
fn a_log_that_shrank_is_read_from_its_start_before_anything_else_is_believed() {
    let read = Run {
        log_offset: 10,
        last_output_offset: 10,
        ..run(RunState::Running)
    };
    for (alive, exit) in [(true, None), (false, Some(0)), (false, None)] {
        let step = after_poll(&read, present(log(4, ""), exit, alive));
        assert_eq!(outcome(&step), (RunState::Running, None, POLL));
        assert_eq!(step.next.when, When::Now);
        assert_eq!(step.events[0].name, "log_restarted");
    }
    let asked = cancelled_at(50, read);
    let seen = StopSeen::EndedBefore {
        exit: 0,
        log: Some(log(4, "")),
    };
    assert_eq!(outcome(&after_stop(&asked, seen)), (RunState::Running, None, STOP));
    let step = after_stop(&asked, StopSeen::Killed { log: Some(log(4, "")) });
    assert_eq!(
        step.events[0],
        Event::with("output_cut", serde_json::json!({"bytes": 4}))
    );
}

#[test]
fn the_last_that_a_lost_or_killed_run_wrote_is_cut_where_it_was_not_read_and_says_so() {
    let running = run(RunState::Running);
    let held = LogRead {
        released: text("a "),
        last: Released {
            log_bytes: 10,
            text: "a [REDACTED]".to_owned(),
            ..Released::nothing()
        },
        ..log(30, "a https://")
    };
    let cut = Event::with("output_cut", serde_json::json!({"bytes": 20}));
    let killed = after_stop(
        &cancelled_at(50, running.clone()),
        StopSeen::Killed {
            log: Some(held.clone()),
        },
    );
    assert_eq!(killed.events[0], cut);
    let lost = after_poll(&running, present(held, None, false));
    assert_eq!(lost.events[0], cut);
}

#[test]
fn a_stop_is_cancelled_or_timed_out_only_when_the_box_says_that_all_is_dead() {
    use StopSeen as Seen;
    let running = run(RunState::Running);
    let asked = cancelled_at(50, running.clone());
    let broken = || Seen::Failed(failure(Effect::MayHaveRun, "box_unreachable"));
    let gone = || Seen::Failed(failure(Effect::DidNotRun, "box_gone"));
    for (run, seen, expected) in [
        (
            asked.clone(),
            Seen::Killed { log: None },
            (RunState::Cancelled, None, CLEANUP),
        ),
        (
            late(asked.clone()),
            Seen::Killed { log: None },
            (RunState::Cancelled, None, CLEANUP),
        ),
        (
            late(running.clone()),
            Seen::Killed { log: None },
            (RunState::TimedOut, Some("run_duration_exceeded"), CLEANUP),
        ),
        (
            late(cancelled_at(1801, running.clone())),
            Seen::Killed { log: None },
            (RunState::TimedOut, Some("run_duration_exceeded"), CLEANUP),
        ),
        (
            asked.clone(),
            Seen::EndedBefore {
                exit: 0,
                log: Some(log(2, "ok")),
            },
            (RunState::Completed, None, CLEANUP),
        ),
        (
            asked.clone(),
            Seen::EndedBefore { exit: 0, log: None },
            (RunState::Running, None, POLL),
        ),
        (
            late(running.clone()),
            Seen::EndedBefore {
                exit: 3,
                log: Some(log(0, "")),
            },
            (RunState::Failed, None, CLEANUP),
        ),
        (asked.clone(), broken(), (RunState::Running, None, STOP)),
        (asked.clone(), Seen::StillAlive, (RunState::Running, None, STOP)),
        (
            late(asked.clone()),
            broken(),
            (RunState::TimedOut, Some("run_duration_exceeded"), CLEANUP),
        ),
        (
            late(running.clone()),
            Seen::StillAlive,
            (RunState::TimedOut, Some("run_duration_exceeded"), CLEANUP),
        ),
        (asked.clone(), gone(), (RunState::Lost, Some("box_gone"), CLEANUP)),
        (
            asked,
            Seen::Absent,
            (RunState::Lost, Some("run_directory_missing"), CLEANUP),
        ),
        (
            cancelled_at(50, claimed()),
            Seen::Absent,
            (RunState::Lost, Some("dispatch_ambiguous"), CLEANUP),
        ),
    ] {
        assert_eq!(outcome(&after_stop(&run, seen.clone())), expected, "{seen:?}");
    }
}

#[test]
fn without_a_claim_nothing_is_sent_and_the_end_says_why() {
    let admitted = run(RunState::Admitted);
    for (run, last_failure, expected) in [
        (
            cancelled_at(50, admitted.clone()),
            None,
            (RunState::Cancelled, None, None),
        ),
        (
            late(admitted.clone()),
            None,
            (RunState::TimedOut, Some("not_started_in_time"), None),
        ),
        (
            late(admitted.clone()),
            Some("box_not_ready"),
            (RunState::TimedOut, Some("not_started_in_time"), None),
        ),
        (
            late(admitted.clone()),
            Some("box_unauthorized"),
            (RunState::Failed, Some("box_unauthorized"), None),
        ),
        (
            late(admitted),
            Some("box_billing_required"),
            (RunState::Failed, Some("box_billing_required"), None),
        ),
    ] {
        assert_eq!(outcome(&without_claim(&run, last_failure)), expected);
    }
}

#[test]
fn an_end_that_is_not_verified_is_cleaned_up_at_once_and_a_verified_one_rests() {
    let when = |seen| after_poll(&run(RunState::Running), seen).next.when;
    assert_eq!(when(PollSeen::Absent), When::Now);
    assert_eq!(
        when(PollSeen::Failed(failure(Effect::DidNotRun, "box_stopped"))),
        When::Now
    );
    assert_eq!(
        when(PollSeen::Failed(failure(Effect::DidNotRun, "box_gone"))),
        When::Retention
    );
    assert_eq!(when(present(log(0, ""), Some(0), false)), When::Retention);
    assert_eq!(after_probe(&claimed(), ProbeSeen::Absent).next.when, When::Retention);
}

#[test]
fn cleanup_goes_on_until_the_end_is_verified_or_the_retention_has_passed() {
    let retention = TimeDelta::hours(1);
    let lost = Run {
        finished_at: Some(at(90)),
        ..run(RunState::Lost)
    };
    let expired = Run {
        read_at: at(90 + 3600),
        ..lost.clone()
    };
    let long_expired = Run {
        read_at: at(90 + 30 * 86400),
        ..lost.clone()
    };
    let broken = || CleanupSeen::Failed(failure(Effect::MayHaveRun, "box_unreachable"));
    let stopped = || CleanupSeen::Failed(failure(Effect::DidNotRun, "box_stopped"));
    let gone = || CleanupSeen::Failed(failure(Effect::DidNotRun, "box_gone"));
    for (run, seen, verified, next) in [
        (&lost, CleanupSeen::NothingLeft, true, CLEANUP),
        (&lost, CleanupSeen::StillAlive, false, CLEANUP),
        (&lost, broken(), false, CLEANUP),
        (&lost, stopped(), false, CLEANUP),
        (&lost, gone(), true, None),
        (&expired, broken(), false, None),
        (&expired, stopped(), false, CLEANUP),
        (&long_expired, stopped(), false, None),
    ] {
        let step = after_cleanup(run, seen.clone(), retention);
        assert_eq!(
            (step.update.verifies_end(), step.next.activity),
            (verified, next),
            "{seen:?}"
        );
        assert_eq!(step.update.state(), RunState::Lost);
    }
    let step = after_cleanup(&lost, broken(), TimeDelta::zero());
    assert_eq!(
        step.next.activity, CLEANUP,
        "one unanswered call is no reason to give up"
    );
}

proptest! {
    /// Whatever a box says in whatever state, a decision is taken, and none takes a run back or out of its end.
    #[test]
    fn no_observation_makes_a_decision_fail(
        state in prop::sample::select(vec![RunState::Admitted, RunState::Dispatched, RunState::Running]),
        exit in prop::option::of(any::<u8>()),
        known_exit in prop::option::of(0i16..256),
        (killed, alive, never_started, restarted) in any::<(bool, bool, bool, bool)>(),
        size in 0i64..100,
        read in 0usize..100,
        cancelled in prop::option::of(0i64..4000),
        now in 0i64..4000,
    ) {
        let base = if state == RunState::Admitted { claimed() } else { run(state) };
        let run = Run {
            exit_status: known_exit,
            exit_learnt_at: known_exit.map(|_| at(10)),
            cancellation_requested_at: cancelled.map(at),
            read_at: at(now),
            ..base
        };
        let log = log(size, &"x".repeat(read));
        let poll = PollSeen::Present { log: log.clone(), exit, killed, alive, never_started, restarted };
        let steps = [
            after_poll(&run, poll),
            after_stop(&run, exit.map_or(StopSeen::Killed { log: Some(log.clone()) }, |exit| StopSeen::EndedBefore { exit, log: Some(log) })),
        ];
        for step in steps {
            let terminal = step.update.state().is_terminal();
            prop_assert_eq!(step.next.activity == CLEANUP, terminal);
            prop_assert!(step.next.activity.is_some());
            prop_assert!(step.next.when != When::After(Duration::MAX));
        }
    }
}
