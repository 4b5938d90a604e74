//! What may not be left when all is over: live processes of ended runs, secrets in logs.

use std::collections::HashMap;
use std::time::Duration;

use boxrun::ids::RunId;
use sqlx::{Connection as _, PgConnection};
use tokio::time::Instant;

use crate::checker::Violation;
use crate::evidence::Evidence;
use crate::stage::Stage;

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Set for every command of a run.
const MARK: &str = "BOXRUN_RUN_ID=";

/// Waits until the box has said of every run that was ended from outside that nothing of it lives.
pub async fn wait_for_verified_ends(stage: &Stage, longest: Duration) -> anyhow::Result<()> {
    let mut conn = PgConnection::connect_with(&stage.quiet_options()).await?;
    let give_up = Instant::now() + longest;
    loop {
        let open: Vec<uuid::Uuid> = sqlx::query_scalar(
            "select id from boxrun.runs where state in ('cancelled', 'timed_out', 'lost')
                and end_verified_at is null and dispatch_attempted_at is not null",
        )
        .fetch_all(&mut conn)
        .await?;
        if open.is_empty() {
            return Ok(conn.close().await?);
        }
        if Instant::now() > give_up {
            for id in open {
                stage.witness.accuse(
                    Some(RunId(id)),
                    "nobody made sure that its processes have ended".to_owned(),
                );
            }
            return Ok(());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// Runs of which processes live. Without /proc none is seen.
pub fn living(runs: &HashMap<RunId, Evidence>) -> Vec<RunId> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let marks = processes.filter_map(|process| {
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes()))?;
        String::from_utf8(value.to_vec()).ok()?.parse().ok().map(RunId)
    });
    marks.filter(|id| runs.contains_key(id)).collect()
}

/// No worker may write a secret into its log.
pub fn secrets_in_logs(stage: &Stage) -> anyhow::Result<Vec<Violation>> {
    let mut found = Vec::new();
    let secrets: Vec<(RunId, String)> = stage
        .witness
        .runs()
        .iter()
        .filter_map(|(id, told)| Some((*id, told.plan.secret.clone()?)))
        .collect();
    for entry in std::fs::read_dir(&stage.folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        for (id, secret) in secrets.iter().filter(|(_, secret)| log.contains(secret)) {
            let _ = secret;
            found.push(Violation {
                run: Some(*id),
                what: format!("its secret is in {}", path.display()),
            });
        }
    }
    Ok(found)
}
