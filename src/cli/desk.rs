//! What the commands for people work with: the database, who is asking, and the provider where it is configured.

use anyhow::{Context, bail};
use secrecy::ExposeSecret;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};

use crate::box_api::{BoxClient, BoxErrorCode, Readiness};
use crate::config::{Environment, Provider, process_environment};
use crate::ids::{BoxId, RunId};
use crate::runs::masking::Masker;
use crate::runs::{Principal, Run, read};
use crate::schema;

/// How long somebody at a terminal waits for the database.
const CONNECT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(15);

/// One person's access.
pub(super) struct Desk {
    pub pool: PgPool,
    pub principal: Principal,
    pub masker: Masker,
    /// `None`: no key is set, so the start job asks the provider.
    pub client: Option<BoxClient>,
    /// The longest deadline that may be asked for.
    pub max_duration: std::time::Duration,
}

impl Desk {
    /// From the environment; checks that the schema is recent enough.
    pub async fn open() -> anyhow::Result<Self> {
        let mut environment = Environment::new(&process_environment);
        let database = environment.database();
        let provider = environment.provider();
        let max_duration = environment.max_duration();
        let database = environment.finish(database)?.context("DATABASE_URL is not set")?;
        let place = format!("{}:{}", database.get_host(), database.get_port());
        // A pool would try for a while and then say nothing of the reason.
        let reached = tokio::time::timeout(CONNECT_PATIENCE, PgConnection::connect_with(&database)).await;
        let conn = reached.with_context(|| format!("can't connect to PostgreSQL at {place}: no answer"))?;
        conn.with_context(|| format!("can't connect to PostgreSQL at {place}"))?
            .close()
            .await?;
        let desk = Self::at(database, &provider, max_duration)?;
        schema::check(&desk.pool).await?;
        if desk.client.is_some() {
            schema::check_provider(&desk.pool, &provider.origin()).await?;
        }
        Ok(desk)
    }

    /// As the login user, at this database and provider.
    pub fn at(
        database: PgConnectOptions,
        provider: &Provider,
        max_duration: std::time::Duration,
    ) -> anyhow::Result<Self> {
        let client = provider
            .key
            .clone()
            .map(|key| BoxClient::new(provider.url.clone(), Some(key)))
            .transpose()?;
        Ok(Self {
            pool: PgPoolOptions::new().max_connections(2).connect_lazy_with(database),
            principal: login()?,
            masker: Masker::new(provider.key.iter().map(|key| key.expose_secret().to_owned())),
            client,
            max_duration,
        })
    }

    /// One run, whoever asked for it: whoever has the database sees everything in it.
    pub async fn find(&self, id: RunId) -> anyhow::Result<Run> {
        let mut conn = self.pool.acquire().await?;
        let run = read::find(&mut conn, id).await?;
        run.with_context(|| format!("box_run_not_found: there is no run {id} in this database; `boxrun ls` lists them"))
    }

    /// Whether a worker process gave a sign of life lately.
    pub async fn has_worker(&self) -> anyhow::Result<bool> {
        let alive = sqlx::query_scalar!(
            r#"select exists (select from boxrun.workers
                where heartbeat_at > clock_timestamp() - interval '20 seconds') as "alive!""#
        );
        Ok(alive.fetch_one(&self.pool).await?)
    }

    /// Asks the provider whether a box takes commands; `false`: it can't be asked here.
    pub async fn check_box(&self, id: &BoxId) -> anyhow::Result<bool> {
        let Some(client) = &self.client else { return Ok(false) };
        match client.get_box(id).await {
            Ok(info) => match info.readiness() {
                Readiness::Ready => Ok(true),
                Readiness::Starting => bail!("box_not_ready: box {id} is starting; try again in a moment"),
                Readiness::Stopped => {
                    bail!("box_stopped: box {id} is stopped; start it at the provider, or use another")
                }
            },
            Err(error) if error.code == BoxErrorCode::BoxNotFound => {
                bail!("box_not_found: the provider knows no box {id}")
            }
            Err(error) => Err(error).context("the provider could not be asked about the box"),
        }
    }
}

/// The login name as a principal.
fn login() -> anyhow::Result<Principal> {
    let name = whoami::username().context("your login name could not be found out")?;
    Ok(Principal::user(name))
}
