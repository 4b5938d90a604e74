//! The database: reachable, direct, recent enough, with the rights and connections that a worker needs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, PgPool, Row};

use super::Finding;
use crate::config::{Environment, Provider, process_environment};
use crate::queue::overview::{WORKER_SILENCE_SECONDS, kinds, workers};
use crate::schema::{self, SchemaError};

const PATIENCE: Duration = Duration::from_secs(10);
/// Nothing is decided by this machine's clock; but its logs are read beside the database's times.
const CLOCK_DIFFERENCE_MAX_MS: i64 = 2000;

const DIRECT: &str = "set BOXRUN_DATABASE_URL to a direct connection; the web app may go on using the pooler";

/// What a worker writes.
const RIGHTS: &[(&str, &str)] = &[
    ("jobs", "select, insert, update, delete"),
    ("workers", "select, insert, update, delete"),
    ("run_output", "select, insert, update, delete"),
    ("kind_pauses", "select, insert, update, delete"),
    ("run_events", "select, insert"),
    ("runs", "select, update"),
    ("provider", "select, insert, update"),
    ("settings", "select, insert, update"),
];

pub(super) async fn look(options: &PgConnectOptions, provider: &Provider) -> Vec<Finding> {
    let mut conn = match tokio::time::timeout(PATIENCE, options.connect()).await {
        Ok(Ok(conn)) => conn,
        Ok(Err(error)) => return vec![no_connection(options, &error.to_string())],
        Err(_) => return vec![no_connection(options, "no answer within 10 seconds")],
    };
    let mut findings = vec![Finding::ok("database", place(options))];
    match is_pooled(options, &mut conn).await {
        Ok(false) => findings.push(Finding::ok("pooler", "the connection is direct")),
        Ok(true) => {
            findings.push(Finding::failed(
                "pooler",
                "a transaction-mode pooler (PgBouncer or the like) stands in between: workers need LISTEN and prepared statements",
                DIRECT,
            ));
            return findings;
        }
        Err(error) => {
            findings.push(Finding::failed("pooler", format!("could not be told: {error}"), DIRECT));
            return findings;
        }
    }
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options.clone());
    drop(conn);
    findings.push(clocks(&pool).await.unwrap_or_else(|error| broken("clock", &error)));
    findings.push(
        connections(&pool)
            .await
            .unwrap_or_else(|error| broken("connections", &error)),
    );
    findings.push(
        durability(&pool)
            .await
            .unwrap_or_else(|error| broken("durability", &error)),
    );
    match schema::check(&pool).await {
        Ok(()) => findings.push(Finding::ok("schema", "recent enough for this program")),
        Err(error) => {
            let advice = match error {
                SchemaError::Outdated { .. } | SchemaError::Missing => "run `boxrun migrate`",
                SchemaError::ProviderMismatch { .. } | SchemaError::Database(_) => RIGHTS_ADVICE,
            };
            findings.push(Finding::failed("schema", chain(&error), advice));
            return findings;
        }
    }
    findings.push(rights(&pool).await.unwrap_or_else(|error| broken("rights", &error)));
    findings.push(
        owner(&pool, provider)
            .await
            .unwrap_or_else(|error| broken("provider_mismatch", &error)),
    );
    findings.push(living(&pool).await.unwrap_or_else(|error| broken("workers", &error)));
    findings.push(pauses(&pool).await.unwrap_or_else(|error| broken("pauses", &error)));
    findings
}

const RIGHTS_ADVICE: &str = "run `boxrun migrate --roles` as the owner, then `grant boxrun_worker to` this user";

fn place(options: &PgConnectOptions) -> String {
    format!(
        "{} at {}:{} answers",
        options.get_database().unwrap_or("the default database"),
        options.get_host(),
        options.get_port()
    )
}

fn no_connection(options: &PgConnectOptions, why: &str) -> Finding {
    let detail = format!("{}:{} can't be used: {why}", options.get_host(), options.get_port());
    if why.contains("startup parameter") {
        return Finding::failed("database", format!("{detail}; that is what a pooler says"), DIRECT);
    }
    Finding::failed(
        "database",
        detail,
        "check BOXRUN_DATABASE_URL or DATABASE_URL, and that PostgreSQL runs and lets this machine in",
    )
}

fn broken(check: &'static str, error: &sqlx::Error) -> Finding {
    Finding::failed(check, format!("could not be looked at: {error}"), RIGHTS_ADVICE)
}

fn chain(error: &SchemaError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Whether statements of one connection go to different servers' processes, or two connections to the same: a pooler hands
/// the process that is free to whoever begins a transaction. The simple protocol works through any pooler.
async fn is_pooled(options: &PgConnectOptions, first: &mut PgConnection) -> sqlx::Result<bool> {
    let before = backend(first).await?;
    let mut second = tokio::time::timeout(PATIENCE, options.connect())
        .await
        .map_err(|_| sqlx::Error::PoolTimedOut)??;
    second.execute(sqlx::raw_sql("begin")).await?;
    let other = backend(&mut second).await?;
    if other == before {
        return Ok(true);
    }
    let after = backend(first).await?;
    second.execute(sqlx::raw_sql("rollback")).await?;
    second.close().await?;
    Ok(after != before)
}

async fn backend(conn: &mut PgConnection) -> sqlx::Result<String> {
    // The simple protocol answers in text.
    let row = conn.fetch_one(sqlx::raw_sql("select pg_backend_pid()::text")).await?;
    row.try_get(0)
}

#[expect(clippy::disallowed_methods, reason = "this machine's clock is what is looked at")]
async fn clocks(pool: &PgPool) -> sqlx::Result<Finding> {
    // The first statement connects, which would count as a difference.
    pool.execute("select 1").await?;
    let before = Utc::now();
    let database: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(pool).await?;
    let middle = before + (Utc::now() - before) / 2;
    let difference = (database - middle).num_milliseconds();
    let detail = format!("the database's clock differs from this machine's by {difference} ms");
    Ok(if difference.abs() <= CLOCK_DIFFERENCE_MAX_MS {
        Finding::ok("clock", detail)
    } else {
        Finding::warning(
            "clock",
            detail,
            "let both follow a time server; runs go by the database's clock, logs by this machine's",
        )
    })
}

/// Whether what was committed outlives a crash of the server's machine, and a fail-over to its standbys.
async fn durability(pool: &PgPool) -> sqlx::Result<Finding> {
    let seen = sqlx::query!(
        r#"select current_setting('fsync')::boolean as "fsync!",
                  current_setting('full_page_writes')::boolean as "full_page_writes!",
                  current_setting('synchronous_commit') as "synchronous_commit!",
                  current_setting('synchronous_standby_names') <> '' as "has_synchronous_standby!",
                  (select count(*) from pg_stat_replication) as "standbys!""#
    )
    .fetch_one(pool)
    .await?;
    let not_safe = [("fsync", seen.fsync), ("full_page_writes", seen.full_page_writes)];
    let off: Vec<&str> = not_safe
        .into_iter()
        .filter(|(_, on)| !on)
        .map(|(name, _)| name)
        .collect();
    if !off.is_empty() {
        return Ok(Finding::warning(
            "durability",
            format!(
                "{} off: a crash of the server's machine may lose or break the database",
                off.join(" and ")
            ),
            "switch it on, unless nothing here needs to be kept",
        ));
    }
    let waits_for_standby = seen.has_synchronous_standby && seen.synchronous_commit != "local";
    if seen.standbys > 0 && !waits_for_standby {
        return Ok(Finding::warning(
            "durability",
            "commits do not wait for a standby: a fail-over may forget the last runs that callers were told of",
            "set synchronous_standby_names (and synchronous_commit to on), or accept it",
        ));
    }
    let detail = if waits_for_standby {
        "a commit is on this server's disk and known to a standby before anybody is told"
    } else {
        "a commit is on this server's disk before anybody is told"
    };
    Ok(Finding::ok("durability", detail))
}

async fn connections(pool: &PgPool) -> sqlx::Result<Finding> {
    let seen = sqlx::query!(
        r#"select current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                      as "limit!",
                  (select count(*) from pg_stat_activity where backend_type = 'client backend') as "used!",
                  (select rolconnlimit from pg_roles where rolname = current_user)::bigint as "of_role!",
                  (select count(*) from pg_stat_activity where usename = current_user) as "used_by_role!""#
    )
    .fetch_one(pool)
    .await?;
    let mut environment = Environment::new(&process_environment);
    let needed = environment
        .worker()
        .map_or(5, |(_, options)| i64::from(options.connections) + 1);
    let mut free = seen.limit - seen.used;
    if seen.of_role >= 0 {
        free = free.min(seen.of_role - seen.used_by_role);
    }
    let detail = format!("{} of {} are in use; a worker needs {needed}", seen.used, seen.limit);
    Ok(if free >= needed {
        Finding::ok("connections", detail)
    } else {
        Finding::warning(
            "connections",
            detail,
            "lower BOXRUN_DATABASE_CONNECTIONS or the web app's pool, or raise the limit of the server or the role",
        )
    })
}

async fn rights(pool: &PgPool) -> sqlx::Result<Finding> {
    let mut missing = Vec::new();
    for (table, rights) in RIGHTS {
        for right in rights.split(", ") {
            let has: Option<bool> = sqlx::query_scalar("select has_table_privilege('boxrun.' || $1, $2)")
                .bind(table)
                .bind(right)
                .fetch_one(pool)
                .await?;
            if has != Some(true) {
                missing.push(format!("{right} on {table}"));
            }
        }
    }
    let user: String = sqlx::query_scalar("select current_user::text").fetch_one(pool).await?;
    Ok(if missing.is_empty() {
        Finding::ok("rights", format!("{user} may do all that a worker does"))
    } else {
        Finding::failed("rights", format!("{user} lacks {}", missing.join(", ")), RIGHTS_ADVICE)
    })
}

async fn owner(pool: &PgPool, provider: &Provider) -> sqlx::Result<Finding> {
    const CHECK: &str = "provider_mismatch";
    let configured = provider.origin();
    Ok(match schema::recorded_provider(pool).await? {
        None => Finding::ok(
            CHECK,
            "the database belongs to no provider yet; the first worker writes it down",
        ),
        Some(recorded) if recorded == configured => Finding::ok(CHECK, format!("the database belongs to {recorded}")),
        Some(recorded) => Finding::failed(
            CHECK,
            format!("the database belongs to {recorded}, this process is set up for {configured}"),
            schema::mismatch_advice(&recorded, &configured),
        ),
    })
}

async fn living(pool: &PgPool) -> sqlx::Result<Finding> {
    let workers = workers(pool).await?;
    let alive = workers
        .iter()
        .filter(|worker| worker.heartbeat_age_seconds <= WORKER_SILENCE_SECONDS)
        .count();
    Ok(if alive > 0 {
        Finding::ok("workers", format!("alive: {alive}"))
    } else {
        Finding::warning("workers", "no worker is alive", "start one with `boxrun worker`")
    })
}

async fn pauses(pool: &PgPool) -> sqlx::Result<Finding> {
    let kinds = kinds(pool).await?;
    let paused: Vec<_> = kinds
        .iter()
        .filter(|kind| kind.paused_at.is_some())
        .map(|kind| kind.kind.as_str())
        .collect();
    Ok(if paused.is_empty() {
        Finding::ok("pauses", "no kind is paused")
    } else {
        Finding::warning(
            "pauses",
            format!("paused: {}", paused.join(", ")),
            "`boxrun queue` says by whom and why; `boxrun resume KIND` lets it go on",
        )
    })
}
