//! What a dead or frozen worker had in hand goes on elsewhere, soon, and what it says later changes nothing.

use std::time::Duration;

use boxrun::ids::RunId;
use boxrun::postgres::Durability;
use boxrun::runs::RunState;
use boxrun::sim::{Fault, FaultTarget};
use chrono::{DateTime, Utc};
use rustix::process::Signal;

use super::command::Printing;
use super::setting::{FOR_EVER_MS, Setting, in_setting};
use super::worker::{LEASE, Worker};
use crate::support::wait::wait_until;

const RUNS: usize = 5;
/// After the lease: to notice that it lapsed, and to send the poll.
const GRACE: Duration = Duration::from_secs(2);

fn command() -> Printing {
    Printing::over(10, Duration::from_secs(2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_poll_after_a_kill_comes_within_the_lease_and_two_seconds() {
    in_setting(Durability::Forgotten, async |setting| {
        let mut first = Worker::start(setting, "first").await;
        let mut runs = Vec::new();
        for index in 0..RUNS {
            let box_id = setting.attach(index).await;
            // The poll is in hand, and its lease renewed, until the worker dies.
            setting.inject(&box_id, FaultTarget::Poll, Fault::Latency { ms: FOR_EVER_MS });
            runs.push(setting.admit(&box_id, command()).await);
        }
        for run in &runs {
            setting.wait_for_record(*run, "request", "poll").await;
        }
        let _second = Worker::start(setting, "second").await;
        let killed_at = setting.now().await;
        first.kill9().await;

        let mut slowest = Duration::ZERO;
        for run in runs {
            let look = async || poll_times(setting, run);
            let polls = wait_until("the run is polled again", look, |polls| polls.len() > 1).await;
            let after = (polls[1] - killed_at).to_std().expect("a poll after the kill");
            slowest = slowest.max(after);
            assert!(after <= LEASE + GRACE, "run {run} was polled {after:?} after the kill");
            assert_eq!(setting.ended(run).await.state, RunState::Completed);
            assert_eq!(setting.output(run).await, command().output());
        }
        eprintln!("the slowest of {RUNS} polls came {slowest:?} after the kill, the lease being {LEASE:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_over_its_dispatch_changes_nothing_when_it_goes_on() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::SlowAnswer { ms: 2500 });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "finished", "dispatch").await;
        freeze_until_another_ended_it(setting, &mut first, run).await;
        assert_eq!(setting.starts(&box_id, run), 1);
        assert_eq!(setting.recorded(run, "request", "dispatch").len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_was_frozen_over_a_poll_changes_nothing_when_it_goes_on() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Poll, Fault::SlowAnswer { ms: 2500 });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "finished", "poll").await;
        freeze_until_another_ended_it(setting, &mut first, run).await;
        assert_eq!(setting.starts(&box_id, run), 1);
    })
    .await;
}

/// The run is as the first worker left it, so that only the lease can tell it that its answer comes too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_after_the_lease_changes_nothing_though_the_run_has_not_changed() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::SlowAnswer { ms: 2500 });
        setting.inject(&box_id, FaultTarget::Probe, Fault::Latency { ms: FOR_EVER_MS });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "finished", "dispatch").await;
        first.signal(Signal::STOP);
        let mut second = Worker::start(setting, "second").await;
        setting.wait_for_record(run, "request", "probe").await;

        first.signal(Signal::CONT);
        first.signal(Signal::TERM);
        assert!(first.ended().await.success());
        let left = setting.run(run).await;
        assert_eq!(left.state, RunState::Admitted, "{left:?}");
        assert_eq!(
            setting.recorded(run, "finished", "probe").len(),
            0,
            "the second one still asks"
        );

        second.kill9().await;
        let _third = Worker::start(setting, "third").await;
        assert_eq!(setting.ended(run).await.state, RunState::Completed);
        assert_eq!(setting.starts(&box_id, run), 1);
        assert_eq!(setting.recorded(run, "request", "dispatch").len(), 1);
        assert_eq!(setting.output(run).await, command().output());
    })
    .await;
}

/// Stops `frozen`, which has the run's job in hand; has another worker bring the run to its end; lets the first one finish
/// what it was at; and sees that the run is as it was left.
async fn freeze_until_another_ended_it(setting: &Setting, frozen: &mut Worker, run: RunId) {
    frozen.signal(Signal::STOP);
    let mut second = Worker::start(setting, "second").await;
    let ended = setting.ended(run).await;
    assert_eq!(ended.state, RunState::Completed, "{ended:?}");
    assert_eq!(setting.output(run).await, command().output());
    second.signal(Signal::TERM);
    assert!(second.ended().await.success());
    let left = setting.everything_about(run).await;

    frozen.signal(Signal::CONT);
    // It waits for the dispatch that it believes in flight, and tries to commit what came of it.
    frozen.signal(Signal::TERM);
    assert!(frozen.ended().await.success());
    assert_eq!(setting.everything_about(run).await, left);
}

fn poll_times(setting: &Setting, run: RunId) -> Vec<DateTime<Utc>> {
    let polls = setting.recorded(run, "request", "poll");
    let time = |poll: &serde_json::Value| poll["time"].as_str()?.parse().ok();
    polls.iter().filter_map(time).collect()
}
