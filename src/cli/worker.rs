//! `boxrun worker`.

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::box_api::BoxClient;
use crate::config::{Environment, process_environment};
use crate::jobs::worker;

pub(super) async fn worker() -> anyhow::Result<ExitCode> {
    let mut environment = Environment::new(&process_environment);
    let settings = environment.worker();
    let (provider, options) = environment.finish(settings)?.context("the worker has no settings")?;
    let client = BoxClient::new(provider.url, provider.key)?;
    worker::run(client, options, stop_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Cancelled at SIGTERM or SIGINT.
pub(super) fn stop_signal() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        told.cancel();
    });
    Ok(stop)
}
