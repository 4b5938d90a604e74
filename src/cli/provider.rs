//! `boxrun provider set`.

use std::process::ExitCode;

use super::desk::Desk;
use crate::config::Provider;
use crate::config::{Environment, process_environment};
use crate::schema;

pub(super) async fn set(url: &url::Url) -> anyhow::Result<ExitCode> {
    let mut environment = Environment::new(&process_environment);
    let database = environment.database();
    let database = environment.finish(database)?.unwrap_or_default();
    let provider = Provider {
        url: url.clone(),
        key: None,
    };
    let desk = Desk::at(database, &provider, std::time::Duration::ZERO)?;
    schema::check(&desk.pool).await?;
    schema::set_provider(&desk.pool, &provider.origin()).await?;
    eprintln!(
        "boxrun: this database now belongs to {}; restart its workers",
        provider.origin()
    );
    Ok(ExitCode::SUCCESS)
}
