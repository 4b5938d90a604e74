//! What the provider says about a box.

use crate::ids::BoxId;

/// A box as `GET /boxes/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxInfo {
    pub id: BoxId,
    pub name: Option<String>,
    pub state: BoxState,
    /// The provider's word for how far the box's own set-up is; absent when there is none.
    pub setup_status: Option<String>,
}

/// The provider's states of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoxState {
    Init,
    Provisioning,
    Provisioned,
    Cloning,
    Ready,
    Idle,
    Running,
    Archiving,
    Archived,
    Error,
    /// A state that we do not know, or none.
    Unknown,
}

impl BoxState {
    /// The state by the provider's word for it.
    #[must_use]
    pub fn from_provider(word: &str) -> Self {
        match word {
            "init" => Self::Init,
            "provisioning" => Self::Provisioning,
            "provisioned" => Self::Provisioned,
            "cloning" => Self::Cloning,
            "ready" => Self::Ready,
            "idle" => Self::Idle,
            "running" => Self::Running,
            "archiving" => Self::Archiving,
            "archived" => Self::Archived,
            "error" => Self::Error,
            _ => Self::Unknown,
        }
    }
}

/// Whether a box takes commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    Ready,
    /// Not ready, but it may become so: starting, setting up, in error (which a provider may repair), or unknown.
    Starting,
    /// Archived or on the way there.
    Stopped,
}

impl BoxInfo {
    /// What admission decides by: a box takes commands when it is up and its set-up, if it has one, is done.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        match self.state {
            BoxState::Ready | BoxState::Idle | BoxState::Running => match self.setup_status.as_deref() {
                None | Some("" | "none" | "done") => Readiness::Ready,
                Some(_) => Readiness::Starting,
            },
            BoxState::Archiving | BoxState::Archived => Readiness::Stopped,
            BoxState::Init
            | BoxState::Provisioning
            | BoxState::Provisioned
            | BoxState::Cloning
            | BoxState::Error
            | BoxState::Unknown => Readiness::Starting,
        }
    }
}
