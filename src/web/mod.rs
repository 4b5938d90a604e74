//! The web process: the HTTP API, live output, health.
//!
//! A request is answered from the database; what it was told is durable before it is told. Only admission, attaching and
//! detaching ask the provider, and no connection to the database is kept meanwhile. Any number of these processes work
//! side by side, and a stream that one of them ends goes on at another.

mod access;
mod app;
mod conversations;
mod detach;
mod extract;
mod followers;
mod health;
mod observe;
mod openapi;
mod problem;
mod routes;
mod runs;
mod stream;
pub mod tokens;
mod webhooks;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::box_api::BoxClient;
use crate::http_server;
use crate::ops;
use crate::queue::{LivePool, answered, without_silent_connections};
use crate::runs::SecretKeys;
use crate::runs::masking::Masker;
use crate::schema::{self, SchemaError};
use crate::telemetry::catalogue::Exporter;

pub(crate) use access::parse_principal;
use app::{App, Parts};

/// A request waits for a connection to the database for so long.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(5);
/// No statement of a request takes longer.
const STATEMENT_TIMEOUT: &str = "15s";
/// Between two looks at which principals have not asked for a while.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);

/// Everything a web process needs to be told.
#[derive(Debug, Clone)]
pub struct WebOptions {
    pub database: PgConnectOptions,
    /// Connections beside the one for LISTEN.
    pub connections: u32,
    pub connection_lifetime: Duration,
    pub listen: SocketAddr,
    /// Where health and metrics are answered, too; `None`: only where everything else is.
    pub ops_listen: Option<SocketAddr>,
    /// Origins of pages in browsers that may ask.
    pub allowed_origins: Vec<String>,
    /// The longest deadline that may be asked for.
    pub max_duration: Duration,
    /// Requests per principal and second; `None`: as many as come.
    pub rate_per_second: Option<NonZeroU32>,
    /// How long a shutdown waits for requests in flight.
    pub shutdown: Duration,
    /// What the database remembers the provider by; `None`: without a key the provider is never asked.
    pub provider: Option<String>,
    /// Masked wherever they would be shown.
    pub secrets: Vec<String>,
    /// What seals the secrets of runs and of webhooks.
    pub secret_keys: Option<SecretKeys>,
}

/// Why a web process does not start.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("the database could not be reached")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error("can't listen on {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error(transparent)]
    Ops(#[from] ops::ListenError),
}

/// A web process that listens already.
pub struct Web {
    app: App,
    options: WebOptions,
    listener: TcpListener,
    ops: Option<TcpListener>,
}

impl Web {
    /// Checks database and schema, and listens.
    ///
    /// # Errors
    /// When the database can't be reached, its schema is older than this program, it belongs to another provider, or the
    /// address can't be had.
    pub async fn bind(client: BoxClient, options: WebOptions, stop: CancellationToken) -> Result<Self, WebError> {
        let database = options.database.clone().options([
            ("statement_timeout", STATEMENT_TIMEOUT),
            ("idle_in_transaction_session_timeout", "5s"),
        ]);
        let pool = without_silent_connections(PgPoolOptions::new())
            .max_connections(options.connections)
            .max_lifetime(options.connection_lifetime)
            .acquire_timeout(CONNECTION_PATIENCE)
            .test_before_acquire(false)
            .connect_lazy_with(database);
        answered(prepare(&pool, &options)).await?;
        let listener = bind(options.listen).await?;
        let ops = ops::bind(options.ops_listen).await?;
        let pool = LivePool::new(pool);
        let process = ops::Process::new(ops::Parts {
            by: Exporter::Web,
            pool: pool.clone(),
            pools: vec![("web", pool.clone())],
            provider: options.provider.clone(),
            worker: None,
            stopping: stop.clone(),
        });
        let app = App::new(Parts {
            pool,
            process,
            client,
            masker: Masker::new(options.secrets.iter().cloned()),
            secret_keys: options.secret_keys.clone(),
            max_duration: options.max_duration,
            stopping: stop,
            rate_per_second: options.rate_per_second,
        });
        Ok(Self {
            app,
            options,
            listener,
            ops,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.options.listen)
    }

    /// Where health and metrics are answered apart from everything else.
    #[must_use]
    pub fn ops_address(&self) -> Option<SocketAddr> {
        self.ops.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until told to stop; then streams end, so that their readers go on elsewhere, and requests in flight are
    /// answered.
    pub async fn serve(self) {
        let Self {
            app,
            options,
            listener,
            ops,
        } = self;
        let stop = app.stopping.clone();
        let mut background = JoinSet::new();
        {
            let (app, stop) = (app.clone(), stop.clone());
            background.spawn(async move { app.followers.look_around(stop).await });
        }
        {
            let (app, stop) = (app.clone(), stop.clone());
            background.spawn(async move { app.followers.listen(options.database, stop).await });
        }
        {
            let app = app.clone();
            background.spawn(async move {
                loop {
                    tokio::time::sleep(FORGET_INTERVAL).await;
                    app.forget_idle_principals();
                }
            });
        }
        background.spawn(app.process.clone().serve(ops));
        let routes = routes::all(app, &options.allowed_origins);
        http_server::serve(listener, routes, stop, options.shutdown).await;
        background.shutdown().await;
    }
}

async fn prepare(pool: &sqlx::PgPool, options: &WebOptions) -> Result<(), WebError> {
    schema::check(pool).await?;
    if let Some(provider) = &options.provider {
        schema::check_provider(pool, provider).await?;
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, WebError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| WebError::Listen { address, source })
}
