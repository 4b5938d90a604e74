//! Admission: making a run durable, at most one per key and one live run per box.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use super::read::find;
use super::run::{Principal, Run};
use super::secrets::{self, RunSecrets, SecretKeys};
use crate::ids::{BoxId, ConversationId, RunId};

/// The longest command, in bytes of UTF-8.
pub const COMMAND_MAX_BYTES: usize = 8000;
/// The longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 256;
/// The deadline after admission where nothing else is configured.
pub const DEFAULT_MAX_DURATION: Duration = Duration::from_mins(30);

/// A run that is asked for.
#[derive(Debug, Clone)]
pub struct NewRun {
    pub conversation_id: ConversationId,
    pub box_id: BoxId,
    pub principal: Principal,
    /// Shell text, 1 to 8000 bytes of UTF-8, not blank, without NUL.
    pub command: String,
    /// 1 to 256 bytes; the same key, box and command is the same run.
    pub idempotency_key: String,
    /// Absolute, or relative to `$HOME` on the box.
    pub cwd: Option<String>,
    /// Added to the command's environment; shown to everybody who may see the run.
    pub env: BTreeMap<String, String>,
    /// Sealed at rest; shown to nobody.
    pub secrets: RunSecrets,
    /// What seals them; needed where there are secrets.
    pub secret_keys: Option<SecretKeys>,
    /// A shorter deadline than `limit`; `None`: `limit` itself.
    pub max_duration: Option<Duration>,
    /// The longest deadline that may be asked for.
    pub limit: Duration,
    /// The provider was asked and the box takes commands; otherwise the start job asks.
    pub box_checked: bool,
}

impl NewRun {
    /// A run with the default deadline, directory and environment, whose box the start job checks.
    #[must_use]
    pub fn new(
        conversation_id: ConversationId,
        box_id: BoxId,
        principal: Principal,
        command: impl Into<String>,
        idempotency_key: impl Into<String>,
    ) -> Self {
        Self {
            conversation_id,
            box_id,
            principal,
            command: command.into(),
            idempotency_key: idempotency_key.into(),
            cwd: None,
            env: BTreeMap::new(),
            secrets: RunSecrets::default(),
            secret_keys: None,
            max_duration: None,
            limit: DEFAULT_MAX_DURATION,
            box_checked: false,
        }
    }
}

/// Why a run was not admitted. Each begins with its stable code.
#[derive(Debug, thiserror::Error)]
pub enum StartRunError {
    #[error("invalid_command: a command is 1 to {COMMAND_MAX_BYTES} bytes of UTF-8, not blank, without NUL; {0}")]
    InvalidCommand(&'static str),
    #[error("invalid_idempotency_key: an idempotency key is 1 to {IDEMPOTENCY_KEY_MAX_BYTES} bytes, without NUL; {0}")]
    InvalidIdempotencyKey(&'static str),
    #[error(
        "invalid_max_duration: a run may last 1 to {} seconds, {} were asked for",
        limit.as_secs(),
        asked.as_secs()
    )]
    InvalidMaxDuration { asked: Duration, limit: Duration },
    #[error("invalid_request: {field}: {problem}")]
    InvalidRequest { field: &'static str, problem: &'static str },
    #[error("secrets_not_configured: BOXRUN_SECRET_KEYS is not set, so secrets can't be sealed")]
    SecretsNotConfigured,
    #[error("box_not_owned: the box is not attached to this conversation; attach it first")]
    BoxNotOwned,
    #[error("box_run_idempotency_conflict: the key was used for another box or command (run {0}); choose another key")]
    IdempotencyConflict(RunId),
    #[error("box_run_in_progress: run {0} is active on the box; wait for it or cancel it")]
    RunInProgress(RunId),
    #[error("busy: too many rivals for the same key or box; try again")]
    Busy,
    #[error("the run could not be written to the database")]
    Database(#[from] sqlx::Error),
}

impl StartRunError {
    /// The stable code; `None` where the database failed.
    #[must_use]
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::InvalidCommand(_) => Some("invalid_command"),
            Self::InvalidIdempotencyKey(_) => Some("invalid_idempotency_key"),
            Self::InvalidMaxDuration { .. } => Some("invalid_max_duration"),
            Self::InvalidRequest { .. } => Some("invalid_request"),
            Self::SecretsNotConfigured => Some("secrets_not_configured"),
            Self::BoxNotOwned => Some("box_not_owned"),
            Self::IdempotencyConflict(_) => Some("box_run_idempotency_conflict"),
            Self::RunInProgress(_) => Some("box_run_in_progress"),
            Self::Busy => Some("busy"),
            Self::Database(_) => None,
        }
    }
}

/// Admits a run inside the caller's transaction: committed, a worker starts it within milliseconds; rolled back, nothing
/// has happened. An exact repeat (same conversation, key, box and command) returns the run there is, whatever its state.
///
/// # Errors
/// A refusal leaves the caller's transaction alive. [`StartRunError::Database`] is the database's own failure; at
/// REPEATABLE READ and above that can be a serialization failure, which the caller handles as any other.
pub async fn start_run(conn: &mut PgConnection, new: NewRun) -> Result<Run, StartRunError> {
    let max_duration = check(&new)?;
    let admission = sqlx::query!(
        r#"select outcome as "outcome!", run_id as "run_id: RunId"
             from boxrun.admit_run($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"#,
        new.conversation_id.0,
        new.box_id.as_str(),
        new.principal.kind,
        new.principal.id,
        new.command,
        new.idempotency_key,
        new.cwd,
        serde_json::json!(new.env),
        interval(max_duration),
        new.box_checked,
    )
    .fetch_one(&mut *conn)
    .await?;
    if let ("admitted", Some(id), Some(keys)) = (admission.outcome.as_str(), admission.run_id, &new.secret_keys)
        && !new.secrets.is_empty()
    {
        secrets::store(&mut *conn, id, &keys.seal(id, &new.secrets)).await?;
    }
    match (admission.outcome.as_str(), admission.run_id) {
        ("admitted" | "existing", Some(id)) => find(conn, id).await?.ok_or(StartRunError::Busy),
        ("box_run_idempotency_conflict", Some(id)) => Err(StartRunError::IdempotencyConflict(id)),
        ("box_run_in_progress", Some(id)) => Err(StartRunError::RunInProgress(id)),
        ("box_not_owned", _) => Err(StartRunError::BoxNotOwned),
        _ => Err(StartRunError::Busy),
    }
}

/// Checks what was asked for, as far as that goes without the database, and returns how long the run may last.
pub(crate) fn check(new: &NewRun) -> Result<Duration, StartRunError> {
    match new.command.as_str() {
        text if text.trim().is_empty() => return Err(StartRunError::InvalidCommand("this one is blank")),
        text if text.len() > COMMAND_MAX_BYTES => return Err(StartRunError::InvalidCommand("this one is longer")),
        text if text.contains('\0') => return Err(StartRunError::InvalidCommand("this one has a NUL")),
        _ => {}
    }
    match new.idempotency_key.as_str() {
        "" => return Err(StartRunError::InvalidIdempotencyKey("this one is empty")),
        text if text.len() > IDEMPOTENCY_KEY_MAX_BYTES => {
            return Err(StartRunError::InvalidIdempotencyKey("this one is longer"));
        }
        text if text.contains('\0') => return Err(StartRunError::InvalidIdempotencyKey("this one has a NUL")),
        _ => {}
    }
    let refuse = |field, problem| Err(StartRunError::InvalidRequest { field, problem });
    let principal = &new.principal;
    if principal.kind.is_empty() || principal.kind.len() > 64 || principal.id.len() > 256 {
        return refuse(
            "principal",
            "it has a type of 1 to 64 bytes and an id of at most 256 bytes",
        );
    }
    if principal.kind.contains('\0') || principal.id.contains('\0') {
        return refuse("principal", "there is no NUL in it");
    }
    if new
        .cwd
        .as_deref()
        .is_some_and(|cwd| cwd.is_empty() || cwd.contains(['\0', '\n']) || cwd.len() > 4096)
    {
        return refuse("cwd", "a directory is 1 to 4096 bytes, without NUL and newline");
    }
    check_secrets(new)?;
    for (name, value) in &new.env {
        if !is_variable(name) || name.starts_with("BOXRUN_") {
            return refuse(
                "env",
                "a name is letters, digits and _, and does not begin with BOXRUN_",
            );
        }
        if value.contains('\0') {
            return refuse("env", "a value has no NUL");
        }
    }
    if new
        .env
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum::<usize>()
        > 32 * 1024
    {
        return refuse("env", "names and values have 32 KiB together at most");
    }
    let asked = new.max_duration.unwrap_or(new.limit);
    if asked < Duration::from_secs(1) || asked > new.limit {
        return Err(StartRunError::InvalidMaxDuration {
            asked,
            limit: new.limit,
        });
    }
    Ok(asked)
}

fn check_secrets(new: &NewRun) -> Result<(), StartRunError> {
    if new.secrets.is_empty() {
        return Ok(());
    }
    let refuse = |field, problem| Err(StartRunError::InvalidRequest { field, problem });
    if let Some((field, problem)) = new.secrets.problem() {
        return refuse(field, problem);
    }
    for name in new.secrets.env.keys() {
        if !is_variable(name) || name.starts_with("BOXRUN_") || FIXED_IN_A_SHELL.contains(&name.as_str()) {
            return refuse(
                "secret_env",
                "a name is letters, digits and _, no BOXRUN_…, and not one that a shell keeps for itself",
            );
        }
        if new.env.contains_key(name) {
            return refuse("secret_env", "a name stands in env or in secret_env, not in both");
        }
    }
    if new.secret_keys.is_none() {
        return Err(StartRunError::SecretsNotConfigured);
    }
    Ok(())
}

/// Names that bash does not let anybody set.
const FIXED_IN_A_SHELL: [&str; 6] = ["BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"];

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX),
    }
}
