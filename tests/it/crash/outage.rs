//! PostgreSQL goes away under working workers and comes back.

use std::time::Duration;

use boxrun::postgres::Durability;
use boxrun::runs::RunState;

use super::command::Printing;
use super::setting::{Setting, in_setting};
use super::worker::Worker;
use crate::support::wait::wait_until;

const RUNS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_outlive_a_restart_and_a_crash_of_the_database() {
    // What a crash may forget elsewhere must be kept here: a claim that was durable is what the promises rest on.
    in_setting(Durability::Kept, async |setting| {
        let mut workers = [Worker::start(setting, "one").await, Worker::start(setting, "two").await];
        let command = Printing::over(60, Duration::from_secs(9));
        let mut runs = Vec::new();
        for index in 0..RUNS {
            let box_id = setting.attach(index).await;
            let run = setting.admit(&box_id, command).await;
            runs.push((box_id, run));
        }
        wait_until_all_print(setting).await;

        setting.restart_postgres().await;
        assert_eq!(live(setting).await, RUNS, "all are active over the restart");
        let printed = printed(setting).await;
        let look = async || self::printed(setting).await;
        wait_until("output is stored again", look, |now| *now > printed).await;
        setting.crash_postgres().await;
        let live = live(setting).await;
        eprintln!("{live} of {RUNS} runs were active over the crash");
        assert!(live >= 10, "{live} were active over the crash");

        for (box_id, run) in runs {
            let ended = setting.ended(run).await;
            assert_eq!(ended.state, RunState::Completed, "{ended:?}");
            assert_eq!(setting.starts(&box_id, run), 1);
            assert_eq!(setting.recorded(run, "request", "dispatch").len(), 1);
            assert_eq!(setting.output(run).await, command.output());
        }
        workers.iter_mut().for_each(Worker::assert_alive);
    })
    .await;
}

async fn wait_until_all_print(setting: &Setting) {
    let look = async || -> i64 {
        sqlx::query_scalar("select count(*) from boxrun.runs where state = 'running' and last_output_offset > 0")
            .fetch_one(&setting.pool)
            .await
            .expect("the database answers")
    };
    wait_until("all runs print", look, |count| usize::try_from(*count) == Ok(RUNS)).await;
}

/// Runs that have not ended.
async fn live(setting: &Setting) -> usize {
    let live: i64 = sqlx::query_scalar("select count(*) from boxrun.runs where finished_at is null")
        .fetch_one(&setting.pool)
        .await
        .expect("the database answers");
    usize::try_from(live).expect("a count")
}

/// Bytes of output of all runs together.
async fn printed(setting: &Setting) -> i64 {
    sqlx::query_scalar("select sum(last_output_offset)::bigint from boxrun.runs")
        .fetch_one(&setting.pool)
        .await
        .expect("the database answers")
}
