//! The kinds of jobs.

/// What a job does for its run. Each kind is served on its own, so that many of one can't keep another waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, clap::ValueEnum, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum JobKind {
    Start,
    Poll,
    Stop,
    Cleanup,
}

impl JobKind {
    /// All kinds, in the order of a run's life.
    pub const ALL: [Self; 4] = [Self::Start, Self::Poll, Self::Stop, Self::Cleanup];

    /// The word used in SQL, logs and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Poll => "poll",
            Self::Stop => "stop",
            Self::Cleanup => "cleanup",
        }
    }

    /// Its place in [`JobKind::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Start => 0,
            Self::Poll => 1,
            Self::Stop => 2,
            Self::Cleanup => 3,
        }
    }
}

impl std::fmt::Display for JobKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
