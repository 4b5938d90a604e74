//! What everything happens on: PostgreSQL with its standby, the simulator with its boxes, the workers, and proxies between.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use boxrun::ids::{BoxId, ConversationId};
use boxrun::runs::conversations::attach_box;
use boxrun::runs::{Principal, SecretKeys};
use boxrun::schema;
use boxrun::sim::{SimOptions, Simulator};
use secrecy::SecretString;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::database::Database;
use crate::faults::FaultLog;
use crate::proxy::Proxy;
use crate::witness::Witness;
use crate::workers::{Worker, WorkerSettings, faketime};

const BOX_API_KEY: &str = "chaos-box-api-key";
const WORKERS: [&str; 3] = ["one", "two", "three"];
const BOXES: usize = 24;
/// The alphabet of box ids.
const ALPHABET: &[u8] = b"23456789abcdefghjkmnpqrstuvwxyz";

pub struct Stage {
    pub database: Mutex<Database>,
    /// Between workers and database.
    pub worker_way: Proxy,
    /// Between callers and database.
    pub caller_way: Proxy,
    /// Between those who only watch and the database: it goes along with a failover and has no other faults.
    pub quiet_way: Proxy,
    /// Between workers and provider.
    pub provider_way: Proxy,
    pub simulator: Simulator,
    pub workers: Vec<Mutex<Worker>>,
    pub clocks_shift: bool,
    pub boxes: Vec<BoxId>,
    pub conversation: ConversationId,
    pub principal: Principal,
    pub secret_keys: SecretKeys,
    pub witness: Witness,
    pub faults: FaultLog,
    pub folder: PathBuf,
    caller_options: PgConnectOptions,
    quiet_options: PgConnectOptions,
}

impl Stage {
    pub async fn set_up(folder: &Path) -> anyhow::Result<Self> {
        let database = Database::start(folder).await?;
        let simulator = Simulator::start(SimOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            root: folder.join("boxes"),
            key: SecretString::from(BOX_API_KEY),
            boxes: Vec::new(),
            allow_remote: false,
        })
        .await?;
        let primary = database.address()?;
        let provider = simulator.url().socket_addrs(|| None)?[0];
        let (worker_way, caller_way, quiet_way, provider_way) = (
            Proxy::start(primary).await?,
            Proxy::start(primary).await?,
            Proxy::start(primary).await?,
            Proxy::start(provider).await?,
        );
        let caller_options: PgConnectOptions = database.url_by_way_of(caller_way.address())?.parse()?;
        let caller_options = caller_options
            .application_name("chaos-caller")
            .ssl_mode(PgSslMode::Disable)
            .options([
                ("statement_timeout", "8s"),
                ("idle_in_transaction_session_timeout", "5s"),
            ]);
        let quiet_options: PgConnectOptions = database.url_by_way_of(quiet_way.address())?.parse()?;
        let quiet_options = quiet_options
            .application_name("chaos-observer")
            .ssl_mode(PgSslMode::Disable);

        let pool = sqlx::PgPool::connect_with(quiet_options.clone()).await?;
        schema::migrate(&pool).await?;
        pool.close().await;
        let key_text = base64::engine::general_purpose::STANDARD.encode([7; 32]);
        let settings = WorkerSettings {
            database_url: database.url_by_way_of(worker_way.address())?,
            box_api_url: format!("http://{}/", provider_way.address()),
            box_api_key: BOX_API_KEY.to_owned(),
            secret_keys: key_text.clone(),
            logs: folder.to_owned(),
            faketime: faketime(),
        };
        let workers: anyhow::Result<Vec<_>> = WORKERS
            .iter()
            .map(|name| Ok(Mutex::new(Worker::start(name, &settings)?)))
            .collect();
        let stage = Self {
            database: Mutex::new(database),
            worker_way,
            caller_way,
            quiet_way,
            provider_way,
            simulator,
            workers: workers?,
            clocks_shift: settings.faketime.is_some(),
            boxes: (0..BOXES).map(box_id).collect(),
            conversation: ConversationId(Uuid::from_u128(1)),
            principal: Principal::user("chaos"),
            secret_keys: SecretKeys::parse(&key_text)?,
            witness: Witness::default(),
            faults: FaultLog::default(),
            folder: folder.to_owned(),
            caller_options,
            quiet_options,
        };
        stage.attach_boxes().await?;
        Ok(stage)
    }

    async fn attach_boxes(&self) -> anyhow::Result<()> {
        let mut conn = sqlx::PgConnection::connect_with(&self.quiet_options).await?;
        for id in &self.boxes {
            attach_box(&mut conn, self.conversation, id, &self.principal).await?;
        }
        Ok(conn.close().await?)
    }

    pub fn caller_options(&self) -> PgConnectOptions {
        self.caller_options.clone()
    }

    pub fn quiet_options(&self) -> PgConnectOptions {
        self.quiet_options.clone()
    }

    /// All ways lead to the primary of now, and what was open is cut.
    pub async fn follow_primary(&self, database: &Database) -> anyhow::Result<()> {
        let primary = database.address()?;
        for way in [&self.worker_way, &self.caller_way, &self.quiet_way] {
            way.point_to(primary);
            way.cut(|_| true);
        }
        Ok(())
    }

    /// No fault goes on: everything is up, reachable and awake.
    pub async fn heal(&self) -> anyhow::Result<()> {
        self.simulator.clear_faults();
        for way in [&self.worker_way, &self.caller_way, &self.provider_way] {
            way.heal();
        }
        for worker in &self.workers {
            let mut worker = worker.lock().await;
            worker.go_on()?;
            worker.shift_clock(0)?;
        }
        Ok(())
    }

    /// Reports workers that ended though nobody asked them to; those that something is done to at the moment are passed over.
    pub fn look_at_workers(&self) -> anyhow::Result<()> {
        for mut worker in self.workers.iter().filter_map(|worker| worker.try_lock().ok()) {
            if let Some(what) = worker.ended_by_itself()? {
                self.witness.accuse(None, what);
            }
        }
        Ok(())
    }

    /// Ends everything; the folder is the caller's.
    pub async fn take_down(self) -> anyhow::Result<()> {
        for worker in self.workers {
            // Their death needs no ceremony.
            drop(worker);
        }
        // Until the processes have ended, their places in the system are taken.
        tokio::time::timeout(Duration::from_secs(30), self.simulator.stop()).await?;
        self.database.into_inner().stop().await
    }
}

fn box_id(index: usize) -> BoxId {
    let letter = |index: usize| char::from(ALPHABET[index]);
    format!(
        "bx_222222{}{}",
        letter(index / ALPHABET.len()),
        letter(index % ALPHABET.len())
    )
    .parse()
    .expect("a box id")
}
