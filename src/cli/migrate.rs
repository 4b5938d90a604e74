//! `boxrun migrate`: the schema, and with `--roles` the rights.

use std::process::ExitCode;

use anyhow::Context;
use sqlx::postgres::PgPoolOptions;

use crate::config::{Environment, process_environment};
use crate::schema;

pub(super) async fn migrate(roles: bool) -> anyhow::Result<ExitCode> {
    let mut environment = Environment::new(&process_environment);
    let database = environment.database();
    let database = environment.finish(database)?.context("DATABASE_URL is not set")?;
    let pool = PgPoolOptions::new().max_connections(1).connect_with(database).await;
    let pool = pool.context("the database could not be reached")?;
    schema::migrate(&pool)
        .await
        .context("the schema could not be brought up to date; nothing of the failed step is left")?;
    eprintln!("boxrun: the schema is up to date");
    if roles {
        schema::grant_roles(&pool)
            .await
            .context("the roles could not be made; the user of DATABASE_URL needs CREATEROLE")?;
        eprintln!("boxrun: the roles boxrun_app, boxrun_web and boxrun_worker have what they need");
    }
    Ok(ExitCode::SUCCESS)
}
