//! What the provider is asked for, as it is counted.

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    GetBox,
    Dispatch,
    Probe,
    Poll,
    Stop,
    Cleanup,
}

impl Operation {
    /// The word in the metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GetBox => "get_box",
            Self::Dispatch => "dispatch",
            Self::Probe => "probe",
            Self::Poll => "poll",
            Self::Stop => "stop",
            Self::Cleanup => "cleanup",
        }
    }
}
