//! Output: kept in order, each byte once.

use boxrun::runs::RunState;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, log, says};

// Scenario 4
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_same_answer_twice_is_kept_once_and_the_newest_part_of_it(pool: PgPool) {
    let payload = "x".repeat(30_000) + " https://openagents.com/clone";
    let answer = log(payload.len(), payload.as_bytes(), "ALIVE=1");
    let script = [
        answer.clone(),
        answer.held(),
        says(&format!("PRESENT=1 SIZE={} DATA= EXIT=0 ALIVE=0", payload.len())).held(),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    app.wait_for_sent(Sent::Poll, 2).await;
    let first = app.output(run, 0).await;
    assert!(first.output.len() <= 24 * 1024);
    assert!(first.output.ends_with(" https://openagents.com/clone"));
    assert_eq!(first.output, payload[payload.len() - first.output.len()..]);
    assert_eq!(first.next_offset, i64::try_from(payload.len()).unwrap());
    assert_eq!(
        first.output_base_offset,
        first.next_offset - i64::try_from(first.output.len()).unwrap()
    );
    assert!(first.truncated);
    app.server.release();
    app.wait_for_sent(Sent::Poll, 3).await;
    assert_eq!(app.output(run, 0).await, first);
    app.server.release();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await, first);
    app.finish().await;
}
