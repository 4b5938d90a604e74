//! The boxes: a folder each, with a state and a boot id that outlive the process.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::SimError;
use super::detached::{Detached, DetachedCommand, Pid, StatusReport};
use super::exec::{DetachedScript, Logs, RunningScript, ScriptEnvironment};
use super::processes::{Mark, is_marked_alive, kill_marked};
use crate::ids::BoxId;

/// What a box says about itself: the provider's states, and two in which it is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimBoxState {
    Init,
    #[serde(alias = "starting")]
    Provisioning,
    Provisioned,
    Cloning,
    Ready,
    Idle,
    Running,
    Archiving,
    #[serde(alias = "stopped")]
    Archived,
    Error,
    /// `GET` answers 404 `box_not_found`, a command 409 `box_gone`.
    Gone,
    /// Both answer 404 `box_not_found`.
    Missing,
}

/// A change that the box's processes do not survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Power {
    Stop,
    Restart,
    Resume,
}

/// All boxes of one root.
pub(super) struct Boxes {
    root: PathBuf,
    /// Empty: every valid id exists.
    listed: Vec<BoxId>,
    opened: Mutex<HashMap<BoxId, Arc<SimBox>>>,
    closing: CancellationToken,
}

pub(super) struct SimBox {
    pub id: BoxId,
    folder: PathBuf,
    mark: Mark,
    /// Held while a script is being started and while the box changes, so that no script slips past a kill.
    inner: tokio::sync::Mutex<Inner>,
    detached: Detached,
    closing: CancellationToken,
}

struct Inner {
    state: SimBoxState,
    /// Changes when the processes are killed: a script that was running then has no answer worth giving.
    generation: u64,
}

/// A script under way.
pub(super) struct Started {
    pub script: RunningScript,
    pub generation: u64,
}

/// Why a script was not started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// The box is in this state.
    State(SimBoxState),
    Closing,
    /// No directory of the box.
    WorkingDirectory,
    Failed(io::Error),
}

impl Boxes {
    pub fn open(root: &Path, listed: Vec<BoxId>, closing: CancellationToken) -> Result<Self, SimError> {
        // The marks of processes name the root, so it must be the same text however it was given.
        let opened = fs::create_dir_all(root).and_then(|()| root.canonicalize());
        let root = opened.map_err(|source| SimError::Files {
            path: root.to_owned(),
            source,
        })?;
        Ok(Self {
            root,
            listed,
            opened: Mutex::default(),
            closing,
        })
    }

    /// The box with this id, made on first sight; none when only listed boxes exist and it is not one of them.
    pub fn find(&self, id: &BoxId) -> Result<Option<Arc<SimBox>>, SimError> {
        if !self.listed.is_empty() && !self.listed.contains(id) {
            return Ok(None);
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = opened.get(id) {
            return Ok(Some(Arc::clone(found)));
        }
        let made = SimBox::open(&self.root, id, self.closing.clone())?;
        let made = Arc::new(made);
        opened.insert(id.clone(), Arc::clone(&made));
        Ok(Some(made))
    }

    /// Kills every process that any box of this root started, also in an earlier life of the simulator.
    pub async fn kill_all(&self) {
        let opened: Vec<_> = self
            .opened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        for sim_box in opened {
            // The lock waits for a script that is just being started; after it none starts, since we are closing.
            let _inner = sim_box.inner.lock().await;
        }
        kill_marked(Mark::of_root(&self.root)).await;
    }
}

impl SimBox {
    fn open(root: &Path, id: &BoxId, closing: CancellationToken) -> Result<Self, SimError> {
        let folder = root.join(id.as_str());
        let error = |source| SimError::Files {
            path: folder.clone(),
            source,
        };
        fs::create_dir_all(folder.join("home")).map_err(error)?;
        fs::create_dir_all(folder.join("scripts")).map_err(error)?;
        if !folder.join("boot-id").exists() {
            write_whole(&folder.join("boot-id"), &new_boot_id()).map_err(error)?;
        }
        let state = read_state(&folder.join("state")).map_err(error)?;
        let inner = tokio::sync::Mutex::new(Inner { state, generation: 0 });
        Ok(Self {
            id: id.clone(),
            mark: Mark::of_box(root, id),
            folder,
            inner,
            detached: Detached::default(),
            closing,
        })
    }

    pub async fn state(&self) -> SimBoxState {
        self.inner.lock().await.state
    }

    pub async fn generation(&self) -> u64 {
        self.inner.lock().await.generation
    }

    pub fn boot_id(&self) -> Result<String, SimError> {
        let path = self.folder.join("boot-id");
        let text = fs::read_to_string(&path).map_err(|source| SimError::Files { path, source })?;
        Ok(text.trim_end().to_owned())
    }

    pub fn starts(&self) -> Result<Vec<String>, SimError> {
        let path = self.folder.join("starts");
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(SimError::Files { path, source }),
        }
    }

    /// Starts a script, if the box is in a state to; `cwd` is relative to the home.
    pub async fn start(&self, script: &str, cwd: Option<&str>) -> Result<Started, NotStarted> {
        let inner = self.inner.lock().await;
        let cwd = self.takes_commands(&inner, cwd)?;
        let script = RunningScript::start(script, &self.environment(&cwd)).map_err(NotStarted::Failed)?;
        Ok(Started {
            script,
            generation: inner.generation,
        })
    }

    /// As [`start`](Self::start), with the output in files.
    pub async fn start_detached(
        &self,
        script: &str,
        cwd: Option<&str>,
    ) -> Result<(DetachedScript, DetachedCommand), NotStarted> {
        let inner = self.inner.lock().await;
        let cwd = self.takes_commands(&inner, cwd)?;
        self.detached
            .start(script, &self.environment(&cwd))
            .map_err(NotStarted::Failed)
    }

    /// Writes down how a detached command ended, unless the box has forgotten it.
    pub fn detached_ended(&self, pid: Pid, status: ExitStatus) {
        self.detached.ended(pid, status);
    }

    /// How a detached command fares, with the last `tail_bytes` of each of its logs; none: there never was one.
    pub fn detached_status(&self, pid: Pid, tail_bytes: u64) -> io::Result<Option<StatusReport>> {
        let logs = self.detached_logs(pid);
        self.detached
            .status(pid, logs, tail_bytes, || is_marked_alive(pid, &self.mark))
    }

    pub fn detached_logs(&self, pid: Pid) -> Logs {
        Detached::logs(&self.folder, &pid.to_string())
    }

    fn takes_commands(&self, inner: &Inner, cwd: Option<&str>) -> Result<PathBuf, NotStarted> {
        if self.closing.is_cancelled() {
            return Err(NotStarted::Closing);
        }
        match inner.state {
            SimBoxState::Ready | SimBoxState::Idle | SimBoxState::Running => {}
            state => return Err(NotStarted::State(state)),
        }
        let home = self.folder.join("home");
        let cwd = Path::new(cwd.unwrap_or_default());
        let below = cwd
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let directory = home.join(cwd);
        if below && directory.is_dir() {
            Ok(directory)
        } else {
            Err(NotStarted::WorkingDirectory)
        }
    }

    fn environment<'a>(&'a self, cwd: &'a Path) -> ScriptEnvironment<'a> {
        ScriptEnvironment {
            folder: &self.folder,
            cwd,
            mark: &self.mark,
        }
    }

    pub async fn set_state(&self, state: SimBoxState) -> Result<(), SimError> {
        let mut inner = self.inner.lock().await;
        self.store_state(&mut inner, state)
    }

    pub async fn power(&self, change: Power) -> Result<(), SimError> {
        let mut inner = self.inner.lock().await;
        inner.generation += 1;
        self.detached.forget();
        if change == Power::Stop {
            // Stored before the kill: a simulator that dies in between must not come back with a box that looks ready.
            self.store_state(&mut inner, SimBoxState::Archived)?;
        }
        kill_marked(self.mark.clone()).await;
        match change {
            Power::Stop => Ok(()),
            Power::Restart | Power::Resume => {
                let path = self.folder.join("boot-id");
                write_whole(&path, &new_boot_id()).map_err(|source| SimError::Files { path, source })?;
                self.store_state(&mut inner, SimBoxState::Ready)
            }
        }
    }

    fn store_state(&self, inner: &mut Inner, state: SimBoxState) -> Result<(), SimError> {
        let path = self.folder.join("state");
        let text = serde_json::to_string(&state).expect("a state is a word");
        write_whole(&path, &text).map_err(|source| SimError::Files { path, source })?;
        inner.state = state;
        Ok(())
    }
}

fn new_boot_id() -> String {
    Uuid::new_v4().to_string()
}

fn read_state(path: &Path) -> io::Result<SimBoxState> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SimBoxState::Ready),
        Err(error) => Err(error),
    }
}

/// A reader sees the old line or the new one, nothing in between.
fn write_whole(path: &Path, line: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    writeln!(file, "{line}")?;
    fs::rename(temporary, path)
}
