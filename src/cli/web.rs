//! `boxrun web`.

use std::process::ExitCode;

use anyhow::Context;

use crate::box_api::BoxClient;
use crate::config::{Environment, process_environment};
use crate::web::Web;

use super::worker::stop_signal;

pub(super) async fn web() -> anyhow::Result<ExitCode> {
    let mut environment = Environment::new(&process_environment);
    let settings = environment.web();
    let (provider, options) = environment
        .finish(settings)?
        .context("the web process has no settings")?;
    if provider.key.is_none() {
        tracing::warn!("BOX_API_KEY is not set: runs can be read and cancelled, but none started and no box attached");
    }
    let client = BoxClient::new(provider.url, provider.key)?;
    let web = Web::bind(client, options, stop_signal()?).await?;
    tracing::info!(address = %web.address(), ops = ?web.ops_address(), "listening");
    web.serve().await;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}
