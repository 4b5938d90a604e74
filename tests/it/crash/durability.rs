//! The server crashes at once after it has told something.

use std::time::Duration;

use boxrun::postgres::Durability;
use boxrun::runs::RunState;

use super::command::Printing;
use super::setting::in_setting;

/// Nothing flushes what was committed so until 10 s later, and the crash comes before.
const FORGETFUL: [&str; 3] = [
    "alter system set synchronous_commit = off",
    "alter system set wal_writer_delay = '10s'",
    "select pg_reload_conf()",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_outlives_a_crash_also_where_commits_need_not_be_durable() {
    in_setting(Durability::Kept, async |setting| {
        for statement in FORGETFUL {
            sqlx::query(statement)
                .execute(&setting.pool)
                .await
                .expect("a superuser");
        }
        let forgetful = async || {
            let look = sqlx::query_scalar::<_, String>("show synchronous_commit");
            look.fetch_one(&setting.pool).await.expect("the database answers")
        };
        crate::support::wait::wait_until("the settings are read", forgetful, |value| value == "off").await;

        let box_id = setting.attach(0).await;
        let kept = setting.admit(&box_id, Printing::over(1, Duration::ZERO)).await;
        setting.crash_postgres().await;
        assert_eq!(setting.run(kept).await.state, RunState::Admitted);

        setting.cancel(kept).await;
        setting.crash_postgres().await;
        assert_eq!(setting.run(kept).await.state, RunState::Cancelled);
    })
    .await;
}
