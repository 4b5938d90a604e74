//! Private addresses are not called, however they are named.

use serde_json::json;
use sqlx::PgPool;

use super::stage::Stage;
use crate::support::wait::wait_until;

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn private_addresses_are_refused_by_name_and_by_number(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    let hosts = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "0.0.0.0",
        "10.0.0.1",
        "169.254.169.254",
        "[fd00::1]",
    ];
    for (number, host) in hosts.iter().enumerate() {
        let url = format!("http://{host}:{}/hooks", stage.receiver.port);
        let made = stage.put(&format!("ci-{number}"), &json!({ "url": url })).await;
        assert_eq!(made.status, 201, "{host}: {made:?}");
    }
    stage.start_worker(|options| options.webhooks.allow_private = false);
    stage.ended_run().await;
    let rows = wait_until(
        "all were tried",
        async || stage.outbox().await,
        |rows| rows.len() == hosts.len() && rows.iter().all(|row| row.attempts == 1),
    )
    .await;
    for row in rows {
        assert_eq!(row.last_error_code.as_deref(), Some("target_refused"), "{row:?}");
        assert_eq!((row.state.as_str(), row.last_status), ("pending", None));
    }
    assert_eq!(stage.receiver.posts().len(), 0);
    stage.close().await;
}
