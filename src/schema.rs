//! The schema in PostgreSQL: its migrations, whether it is recent enough, and which provider the database belongs to.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::migrate::{MigrateError, Migrator};

/// All migrations; they only expand, so that the previous release runs on the new schema.
pub static MIGRATIONS: Migrator = sqlx::migrate!();

/// Why the database can't be worked on.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("schema_outdated: the schema is at {found}, this program needs {needed}; run `boxrun migrate` first")]
    Outdated { found: i64, needed: i64 },
    #[error("schema_missing: there is no boxrun schema in this database; run `boxrun migrate` first")]
    Missing,
    #[error(
        "provider_mismatch: this database belongs to the provider {recorded}, this process is set up for {configured}; {}",
        mismatch_advice(recorded, configured)
    )]
    ProviderMismatch { recorded: String, configured: String },
    #[error("the schema could not be looked at")]
    Database(#[from] sqlx::Error),
}

/// What `boxrun up` remembers its own simulator by, whatever port it has.
pub const SIMULATOR: &str = "simulator";

/// What to do about a process that is set up for another provider than the database's.
pub(crate) fn mismatch_advice(recorded: &str, configured: &str) -> String {
    if recorded == SIMULATOR {
        "it was made by `boxrun up`: unset BOX_API_URL and BOX_API_KEY to work with it".to_owned()
    } else {
        format!("if that is meant, run `boxrun provider set {configured}`")
    }
}

/// Brings the schema up to date.
///
/// # Errors
/// When a migration fails (it is rolled back) or the database was made by a newer, incompatible one.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    // The previous release migrates at its own start, too: what it does not know is no error.
    let mut migrator = Migrator { ..sqlx::migrate!() };
    migrator.set_ignore_missing(true);
    migrator.run(pool).await
}

/// Checks that the schema is at least what this program needs; a newer one is fine.
///
/// # Errors
/// [`SchemaError::Outdated`] and [`SchemaError::Missing`] say what to run.
pub async fn check(pool: &PgPool) -> Result<(), SchemaError> {
    let exists = sqlx::query_scalar!(r#"select to_regclass('boxrun._sqlx_migrations') is not null as "exists!""#);
    if !exists.fetch_one(pool).await? {
        return Err(SchemaError::Missing);
    }
    let found = sqlx::query_scalar::<_, Option<i64>>("select max(version) from boxrun._sqlx_migrations where success")
        .fetch_one(pool)
        .await?
        .unwrap_or(0);
    let needed = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
    if found < needed {
        Err(SchemaError::Outdated { found, needed })
    } else {
        Ok(())
    }
}

/// The provider that the database belongs to; `None`: no process has worked with it yet.
///
/// # Errors
/// Only the database's.
pub async fn recorded_provider(pool: &PgPool) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar!("select origin from boxrun.provider")
        .fetch_optional(pool)
        .await
}

/// Checks that the database belongs to `provider`; the first process writes it down.
///
/// # Errors
/// [`SchemaError::ProviderMismatch`], so that no command meant for one provider's box is asked for at another's.
pub async fn check_provider(pool: &PgPool, provider: &str) -> Result<(), SchemaError> {
    // Read first: a role that may only look must not need the right to write.
    let recorded = match recorded_provider(pool).await? {
        Some(recorded) => recorded,
        None => first_provider(pool, provider).await?,
    };
    if recorded == provider {
        Ok(())
    } else {
        Err(SchemaError::ProviderMismatch {
            recorded,
            configured: provider.to_owned(),
        })
    }
}

async fn first_provider(pool: &PgPool, provider: &str) -> sqlx::Result<String> {
    sqlx::query!(
        "insert into boxrun.provider (origin) values ($1) on conflict do nothing",
        provider
    )
    .execute(pool)
    .await?;
    sqlx::query_scalar!("select origin from boxrun.provider")
        .fetch_one(pool)
        .await
}

/// Makes the database belong to `provider`.
///
/// # Errors
/// Only the database's.
pub async fn set_provider(pool: &PgPool, provider: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into boxrun.provider (origin) values ($1)
         on conflict (only_row) do update set origin = $1, updated_at = clock_timestamp()",
        provider
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Writes down how long a run may last, for the SQL functions: they have no environment. Each worker does at its start, so
/// that a deployment has one limit; of workers that differ the last one decides.
///
/// # Errors
/// Only the database's.
pub async fn record_max_duration(pool: &PgPool, max_duration: Duration) -> sqlx::Result<()> {
    let seconds = i32::try_from(max_duration.as_secs()).unwrap_or(i32::MAX);
    sqlx::query!(
        "insert into boxrun.settings as s (max_duration_seconds) values ($1)
         on conflict (only_row) do update set max_duration_seconds = $1, updated_at = clock_timestamp()
          where s.max_duration_seconds <> $1",
        seconds
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Makes the roles boxrun_app, boxrun_web and boxrun_worker, and grants each what it needs; may be repeated.
///
/// # Errors
/// When the user may not create roles.
pub async fn grant_roles(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::raw_sql(include_str!("roles.sql")).execute(pool).await?;
    Ok(())
}
