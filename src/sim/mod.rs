//! A local box provider that really runs commands: for development, demonstrations and tests.
//!
//! It speaks the provider's wire protocol at `/boxes/…` and `/api/box/v1/boxes/…`, so that the provider's own SDK can't tell
//! it apart (`tests/it/provider_sdk.rs`), and runs each script with `sh` in a home folder per box. That is remote code execution by design, so: loopback only unless told otherwise, a key on every
//! request, JSON content type and a loopback `Host` required (see `gate`). A box is a folder, not a sandbox: its commands
//! can do what the user who started the simulator can.
//!
//! It can be told to misbehave (`/_sim/faults`), to stop, restart and resume boxes (`/_sim/boxes/…`), and writes down what
//! it was asked and what it really started (`/_sim/record`, `<root>/record.jsonl`); see `admin`. What is in `<root>`
//! outlives the process: killed and started again, the boxes' homes, states and boot ids are as before, and commands that
//! still run go on. One simulator a root: a second one would end the first one's commands when it stops. On Linux it needs
//! setsid(1), as boxrun's own scripts do.
//!
//! ```text
//! <root>/record.jsonl            one line an event, see `record`
//! <root>/<box>/home/             $HOME and working folder of its commands
//! <root>/<box>/home/.ascii/processes/<pid>.log, <pid>.err.log   output of detached commands
//! <root>/<box>/state             one word
//! <root>/<box>/boot-id           named to scripts by BOXRUN_BOOT_ID_FILE
//! <root>/<box>/starts            named to commands by BOXRUN_SIM_STARTS: those that want to be counted append a line
//! <root>/<box>/scripts/          scripts being run
//! ```

mod admin;
mod boxes;
mod clock;
mod detached;
mod exec;
mod faults;
mod gate;
mod processes;
mod provider;
mod record;
mod reply;
mod request_kind;
mod routes;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::ids::BoxId;
pub use boxes::SimBoxState;
use boxes::{Boxes, Power};
pub use faults::{Fault, FaultRule, FaultTarget, Work};
use faults::{Faults, InvalidFaultRule};
use record::Record;

/// How to start a simulator.
#[derive(Debug)]
pub struct SimOptions {
    /// Port 0 takes a free one, see [`Simulator::url`].
    pub listen: SocketAddr,
    /// Created when missing.
    pub root: PathBuf,
    pub key: SecretString,
    /// The boxes that exist; empty: every valid box id does.
    pub boxes: Vec<BoxId>,
    /// Listen, and answer, beyond this machine.
    pub allow_remote: bool,
}

/// The simulator can't be started, or its files can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("the simulator runs whatever it is sent, so it listens on loopback only; {0} needs --allow-remote")]
    NotLoopback(SocketAddr),
    #[error("the simulator needs a key")]
    NoKey,
    #[error("the simulator can't listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the simulator can't use {path}")]
    Files { path: PathBuf, source: io::Error },
    #[error("there is no box {0}")]
    NoSuchBox(BoxId),
}

/// A running simulator. Dropped without [`Simulator::stop`] it goes as in a crash: commands that run go on.
pub struct Simulator {
    url: Url,
    world: Arc<World>,
    server: JoinHandle<()>,
}

/// What all requests share.
struct World {
    key: SecretString,
    allow_remote: bool,
    boxes: Boxes,
    faults: Faults,
    record: Record,
    /// Work goes on when the client that asked for it has gone.
    work: TaskTracker,
    closing: CancellationToken,
}

impl Simulator {
    /// Listens and serves until stopped or dropped.
    ///
    /// # Errors
    /// When the address is not loopback and `allow_remote` is not set, is taken, or the root can't be used.
    pub async fn start(options: SimOptions) -> Result<Self, SimError> {
        let SimOptions {
            listen,
            root,
            key,
            boxes,
            allow_remote,
        } = options;
        if !listen.ip().is_loopback() && !allow_remote {
            return Err(SimError::NotLoopback(listen));
        }
        if gate::is_blank(&key) {
            return Err(SimError::NoKey);
        }
        let closing = CancellationToken::new();
        let world = World {
            key,
            allow_remote,
            boxes: Boxes::open(&root, boxes, closing.clone())?,
            faults: Faults::default(),
            record: Record::open(&root)?,
            work: TaskTracker::new(),
            closing,
        };
        let world = Arc::new(world);
        let listen_error = |source| SimError::Listen {
            address: listen,
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let server = tokio::spawn(server::serve(listener, Arc::clone(&world)));
        Ok(Self {
            url: address_url(address),
            world,
            server,
        })
    }

    /// What `BOX_API_URL` should be: `http://127.0.0.1:<port>/`.
    #[must_use]
    pub fn url(&self) -> Url {
        self.url.clone()
    }

    /// Adds a fault, as `POST /_sim/faults` does.
    ///
    /// # Errors
    /// When the rule's numbers are out of range.
    pub fn inject(&self, rule: FaultRule) -> Result<(), InvalidFaultRule> {
        self.world.faults.add(rule)
    }

    /// Takes all faults away, as `DELETE /_sim/faults` does.
    pub fn clear_faults(&self) {
        self.world.faults.clear();
    }

    /// Sets only what the box says about itself, as `PUT /_sim/boxes/{id}` does.
    ///
    /// # Errors
    /// When there is no such box, or its files can't be written.
    pub async fn set_box_state(&self, id: &BoxId, state: SimBoxState) -> Result<(), SimError> {
        self.existing_box(id)?.set_state(state).await
    }

    /// Kills the box's processes; commands get 409 `box_stopped` until it is resumed.
    ///
    /// # Errors
    /// When there is no such box, or its files can't be written.
    pub async fn stop_box(&self, id: &BoxId) -> Result<(), SimError> {
        self.existing_box(id)?.power(Power::Stop).await
    }

    /// Kills the box's processes and gives it a new boot id.
    ///
    /// # Errors
    /// When there is no such box, or its files can't be written.
    pub async fn restart_box(&self, id: &BoxId) -> Result<(), SimError> {
        self.existing_box(id)?.power(Power::Restart).await
    }

    /// Makes a stopped box ready, with a new boot id.
    ///
    /// # Errors
    /// When there is no such box, or its files can't be written.
    pub async fn resume_box(&self, id: &BoxId) -> Result<(), SimError> {
        self.existing_box(id)?.power(Power::Resume).await
    }

    /// The lines that commands on this box appended to `$BOXRUN_SIM_STARTS`.
    ///
    /// # Errors
    /// When there is no such box, or its files can't be read.
    pub fn starts(&self, id: &BoxId) -> Result<Vec<String>, SimError> {
        self.existing_box(id)?.starts()
    }

    /// The record so far, JSON lines.
    ///
    /// # Errors
    /// When its file can't be read.
    pub fn record(&self) -> Result<String, SimError> {
        self.world.record.read()
    }

    /// Ends everything: no new command starts, every process that any box started is killed, and none is left on return,
    /// but for one that hid itself (see `processes`).
    pub async fn stop(mut self) {
        self.world.closing.cancel();
        self.world.boxes.kill_all().await;
        self.world.work.close();
        self.world.work.wait().await;
        self.server.abort();
        // Its end closes the listener: the address is free again on return.
        let _ = (&mut self.server).await;
    }

    fn existing_box(&self, id: &BoxId) -> Result<Arc<boxes::SimBox>, SimError> {
        self.world
            .boxes
            .find(id)?
            .ok_or_else(|| SimError::NoSuchBox(id.clone()))
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn address_url(address: SocketAddr) -> Url {
    format!("http://{address}/")
        .parse()
        .expect("a socket address makes a URL")
}
