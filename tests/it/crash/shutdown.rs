//! SIGTERM: what can be repeated is given back at once, what can't is waited for.

use std::time::{Duration, Instant};

use boxrun::postgres::Durability;
use boxrun::runs::RunState;
use boxrun::sim::{Fault, FaultTarget};
use rustix::process::Signal;

use super::command::{OnTerm, Printing};
use super::setting::{FOR_EVER_MS, Setting, in_setting};
use super::worker::Worker;
use crate::support::wait::wait_until;

const RUNS: usize = 5;
/// Far below the 25 s for which dispatches and kills are waited for, and far above what giving back takes.
const SOON: Duration = Duration::from_secs(8);

fn command() -> Printing {
    Printing::over(10, Duration::from_secs(2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_gives_hanging_polls_back_and_ends_soon() {
    in_setting(Durability::Forgotten, async |setting| {
        let mut first = Worker::start(setting, "first").await;
        let mut runs = Vec::new();
        for index in 0..RUNS {
            let box_id = setting.attach(index).await;
            setting.inject(&box_id, FaultTarget::Poll, Fault::Latency { ms: FOR_EVER_MS });
            runs.push((setting.admit(&box_id, command()).await, box_id));
        }
        for (run, _) in &runs {
            setting.wait_for_record(*run, "request", "poll").await;
        }
        let told = Instant::now();
        first.signal(Signal::TERM);
        let status = first.ended().await;
        assert_eq!(status.code(), Some(0));
        assert!(told.elapsed() < SOON, "it took {:?}", told.elapsed());
        assert_eq!(leased(setting).await, 0, "everything was given back");

        let _second = Worker::start(setting, "second").await;
        for (run, box_id) in runs {
            assert_eq!(setting.ended(run).await.state, RunState::Completed);
            assert_eq!(setting.starts(&box_id, run), 1);
            assert_eq!(setting.output(run).await, command().output());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_waits_for_a_dispatch_in_flight() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::Latency { ms: 2000 });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "request", "dispatch").await;
        first.signal(Signal::TERM);
        assert_eq!(first.ended().await.code(), Some(0));
        let left = setting.run(run).await;
        assert_eq!(left.state, RunState::Dispatched, "{left:?}");
        assert!(left.pid.is_some());
        assert_eq!(leased(setting).await, 0);

        let _second = Worker::start(setting, "second").await;
        assert_eq!(setting.ended(run).await.state, RunState::Completed);
        assert_eq!(
            setting.recorded(run, "request", "probe").len(),
            0,
            "nothing was in doubt"
        );
        assert_eq!(setting.starts(&box_id, run), 1);
        assert_eq!(setting.output(run).await, command().output());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_waits_for_a_kill_in_flight() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        let stubborn = Printing {
            on_term: OnTerm::GoesOn,
            ..Printing::over(300, Duration::from_secs(60))
        };
        let mut worker = Worker::start(setting, "only").await;
        let run = setting.admit(&box_id, stubborn).await;
        let look = async || setting.run(run).await;
        wait_until("the run prints", look, |run| run.last_output_offset > 0).await;
        setting.cancel(run).await;
        setting.wait_for_record(run, "started", "stop").await;
        worker.signal(Signal::TERM);
        assert_eq!(worker.ended().await.code(), Some(0));
        assert_eq!(setting.run(run).await.state, RunState::Cancelled);
        assert_eq!(setting.recorded(run, "request", "stop").len(), 1);
    })
    .await;
}

/// Jobs that somebody holds.
async fn leased(setting: &Setting) -> i64 {
    sqlx::query_scalar("select count(*) from boxrun.jobs where lease is not null")
        .fetch_one(&setting.pool)
        .await
        .expect("the database answers")
}
