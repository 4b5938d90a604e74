//! `boxrun up`: everything on one machine, and a first run whose output is followed.
//!
//! It touches nothing that it did not start: PostgreSQL and simulator are its own, in its data folder, and DATABASE_URL and
//! BOX_API_URL of the environment are ignored unless `--use-environment` is given.

use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use secrecy::{ExposeSecret, SecretString};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use crate::box_api::BoxClient;
use crate::config::{Environment, Provider, process_environment};
use crate::ids::{BoxId, RunId};
use crate::jobs::worker::{self, WorkerOptions};
use crate::postgres::LocalPostgres;
use crate::runs::conversations::{attach_box, default_conversation};
use crate::runs::{NewRun, Principal, StartRunError, start_run};
use crate::schema;
use crate::sim::{SimOptions, Simulator};
use crate::web::tokens::{self, Scope};
use crate::web::{Web, WebError, WebOptions};

use super::UpArgs;
use super::desk::Desk;
use super::follow::{Narration, ending, exit_status, follow};
use super::place::Place;
use super::sim::new_key;
use super::worker::stop_signal;

const FIRST_BOX: &str = "bx_8bhkse3n";
const FIRST_COMMAND: &str = "for line in 1 2 3 4 5; do echo \"line $line of 5 from your first run\"; sleep 1; done; \
                             echo \"it ran on $(uname -sm) in $PWD\"";
/// In the data folder, for commands in another terminal.
const DATABASE_URL_FILE: &str = "database-url";
/// In the data folder, for the HTTP API.
const TOKEN_FILE: &str = "token";

pub(super) async fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_signal()?;
    if args.use_environment {
        let (provider, options, web) = from_environment()?;
        let box_id = args
            .box_id
            .clone()
            .context("--use-environment needs --box (or BOXRUN_BOX) for the first run")?;
        return work(&args, provider, options, web, box_id, stop).await;
    }
    std::fs::create_dir_all(&args.data).with_context(|| format!("{} can't be made", args.data.display()))?;
    eprintln!(
        "boxrun: starting PostgreSQL in {}",
        args.data.join("postgres").display()
    );
    let postgres = tokio::select! {
        started = LocalPostgres::in_folder(args.data.join("postgres")) => started.context("PostgreSQL did not start")?,
        () = stop.cancelled() => return Ok(ExitCode::from(130)),
    };
    keep_secret(&args.data.join(DATABASE_URL_FILE), &postgres.url())?;
    let worked = with_simulator(&args, &postgres.url(), stop).await;
    postgres.stop().await.context("PostgreSQL did not stop")?;
    worked
}

fn from_environment() -> anyhow::Result<(Provider, WorkerOptions, WebOptions)> {
    for name in ["DATABASE_URL", "BOX_API_URL", "BOX_API_KEY"] {
        if process_environment(name).is_none() {
            bail!("--use-environment needs DATABASE_URL, BOX_API_URL and BOX_API_KEY; {name} is not set");
        }
    }
    settings(&process_environment)
}

fn settings(lookup: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<(Provider, WorkerOptions, WebOptions)> {
    let mut environment = Environment::new(lookup);
    let settings = environment.worker().zip(environment.web());
    let settings = environment.finish(settings)?;
    let ((provider, worker), (_, web)) = settings.context("the worker has no settings")?;
    Ok((provider, worker, web))
}

async fn with_simulator(args: &UpArgs, database_url: &str, stop: CancellationToken) -> anyhow::Result<ExitCode> {
    let key = SecretString::from(kept_key(&args.data.join("simulator-key"))?);
    let simulator = Simulator::start(SimOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        root: args.data.join("boxes"),
        key: key.clone(),
        boxes: Vec::new(),
        allow_remote: false,
    })
    .await
    .context("the simulator did not start")?;
    eprintln!("boxrun: simulating boxes at {}", simulator.url());
    let set = |name: &str| match name {
        "DATABASE_URL" => Some(database_url.to_owned()),
        "BOXRUN_DATABASE_URL" => None,
        "BOX_API_URL" => Some(simulator.url().to_string()),
        "BOX_API_KEY" => Some(key.expose_secret().to_owned()),
        other => process_environment(other),
    };
    let worked = match settings(&set) {
        Ok((provider, mut options, mut web)) => {
            // Receivers under development are on this machine.
            options.webhooks.allow_private = true;
            schema::SIMULATOR.clone_into(&mut options.provider);
            web.provider = Some(schema::SIMULATOR.to_owned());
            let box_id = FIRST_BOX.parse().context("the first box's id")?;
            work(args, provider, options, web, box_id, stop).await
        }
        Err(error) => Err(error),
    };
    simulator.stop().await;
    worked
}

/// The simulator's key, made at the first start.
fn kept_key(path: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(key) if !key.trim().is_empty() => return Ok(key.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{} can't be read", path.display())),
    }
    let key = new_key();
    keep_secret(path, &key)?;
    Ok(key)
}

/// Writes a file for this user's eyes only.
fn keep_secret(path: &Path, secret: &str) -> anyhow::Result<()> {
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let mut file = file.with_context(|| format!("{} can't be written", path.display()))?;
    std::io::Write::write_all(&mut file, secret.as_bytes())?;
    Ok(())
}

async fn work(
    args: &UpArgs,
    provider: Provider,
    mut options: WorkerOptions,
    web: WebOptions,
    box_id: BoxId,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    // One process has one such port, and the web process's tells what both of them measure.
    options.ops_listen = None;
    let database = options.database.clone();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(database.clone())
        .await;
    let pool = pool.context("the database could not be reached")?;
    schema::migrate(&pool)
        .await
        .context("the schema could not be brought up to date")?;
    schema::check_provider(&pool, &options.provider).await?;
    pool.close().await;
    eprintln!("boxrun: the schema is up to date; starting a worker and a web process");
    let client = BoxClient::new(provider.url.clone(), provider.key.clone())?;
    let worker_stop = CancellationToken::new();
    let web = listen(client.clone(), web, &worker_stop).await?;
    let address = web.address();
    let serving = tokio::spawn(web.serve());
    let ended = CancellationToken::new();
    let working = {
        let (stop, ended) = (worker_stop.clone(), ended.clone().drop_guard());
        tokio::spawn(async move {
            let _ended = ended;
            worker::run(client, options, stop).await
        })
    };

    let desk = Desk::at(database, &provider, Duration::from_mins(30))?;
    let mut tx = desk.pool.begin().await?;
    attach_box(&mut tx, default_conversation(&desk.principal), &box_id, &desk.principal).await?;
    tx.commit().await?;
    let has_token = !args.use_environment && !args.once;
    if has_token {
        keep_token(&args.data.join(TOKEN_FILE), &desk).await?;
    }
    let (pool, principal) = (desk.pool.clone(), desk.principal.clone());
    let admit = async || admit_first_run(&pool, &principal, &box_id).await;
    let place = Place::Database(desk);
    let first = tokio::select! {
        ended = first_run(&place, &box_id, admit) => Some(ended),
        () = stop.cancelled() => None,
    };
    if !args.once && matches!(first, Some(Ok(_))) {
        say_what_next(args, &box_id, address, has_token);
        tokio::select! {
            () = stop.cancelled() => {}
            // Only a drain ends it.
            () = ended.cancelled() => eprintln!("\nboxrun: the worker was drained"),
        }
        eprintln!("\nboxrun: stopping");
    }
    worker_stop.cancel();
    working.await.context("the worker ended unexpectedly")??;
    serving.await.context("the web process ended unexpectedly")?;
    match first {
        Some(ended) => ended.map(ExitCode::from),
        None => Ok(ExitCode::from(130)),
    }
}

/// Where it is told to, or at the usual address; where that is taken by another program, anywhere on this machine.
async fn listen(client: BoxClient, mut options: WebOptions, stop: &CancellationToken) -> anyhow::Result<Web> {
    let told = ["PORT", "BOXRUN_LISTEN"]
        .iter()
        .any(|name| process_environment(name).is_some());
    match Web::bind(client.clone(), options.clone(), stop.clone()).await {
        Err(WebError::Listen { address, .. }) if !told => {
            tracing::debug!(%address, "taken by another program");
            options.listen.set_port(0);
            Ok(Web::bind(client, options, stop.clone()).await?)
        }
        bound => Ok(bound?),
    }
}

/// A token for the login user, made at the first start and whenever the one there is no longer good.
async fn keep_token(path: &Path, desk: &Desk) -> anyhow::Result<()> {
    if let Ok(token) = std::fs::read_to_string(path)
        && tokens::is_good(&desk.pool, token.trim()).await?
    {
        return Ok(());
    }
    let scopes = [Scope::RunsRead, Scope::RunsWrite, Scope::BoxesWrite];
    let made = tokens::create(&desk.pool, &desk.principal, &scopes, None).await?;
    keep_secret(path, &made.token)
}

/// A run that is left over from last time is followed to its end before: its box takes one at a time.
async fn first_run(
    place: &Place,
    box_id: &BoxId,
    admit: impl AsyncFn() -> Result<RunId, StartRunError>,
) -> anyhow::Result<u8> {
    loop {
        let (id, ours) = match admit().await {
            Ok(id) => (id, true),
            Err(StartRunError::RunInProgress(active)) => {
                eprintln!("boxrun: run {active} from last time is still active on {box_id}; following it first");
                (active, false)
            }
            Err(refused) => return Err(refused.into()),
        };
        let run = place.find(id).await?;
        let ended = follow(place, &run, 0, Narration::States).await?;
        eprintln!("boxrun: {}", ending(&ended));
        if ours {
            return Ok(exit_status(&ended));
        }
    }
}

async fn admit_first_run(pool: &PgPool, principal: &Principal, box_id: &BoxId) -> Result<RunId, StartRunError> {
    let conversation = default_conversation(principal);
    let key = format!("first-run-{}", uuid::Uuid::now_v7());
    let new = NewRun::new(conversation, box_id.clone(), principal.clone(), FIRST_COMMAND, key);
    let mut tx = pool.begin().await?;
    let run = start_run(&mut tx, new).await?;
    tx.commit().await?;
    Ok(run.id)
}

fn say_what_next(args: &UpArgs, box_id: &BoxId, web: SocketAddr, has_token: bool) {
    let boxrun = std::env::current_exe().map_or_else(|_| "boxrun".to_owned(), |path| path.display().to_string());
    eprintln!("\nboxrun: everything is up. In another terminal, for commands of your own:\n");
    if !args.use_environment {
        eprintln!(
            "    export DATABASE_URL=\"$(cat {})\"",
            args.data.join(DATABASE_URL_FILE).display()
        );
    }
    eprintln!("    export BOXRUN_BOX={box_id}");
    eprintln!("    {boxrun} run -- 'echo hello; sleep 3; echo bye'");
    eprintln!("    {boxrun} ls\n");
    if has_token {
        eprintln!("By HTTP (the API is described at http://{web}/openapi.json):\n");
        eprintln!("    export BOXRUN_URL=http://{web}");
        eprintln!(
            "    export BOXRUN_TOKEN=\"$(cat {})\"",
            args.data.join(TOKEN_FILE).display()
        );
        eprintln!("    curl -H \"Authorization: Bearer $BOXRUN_TOKEN\" $BOXRUN_URL/api/v1/runs\n");
    } else {
        eprintln!("The HTTP API is at http://{web} (`boxrun token create` makes a token for it).\n");
    }
    eprintln!("Ctrl-C stops it all; the data is still there next time.");
}
