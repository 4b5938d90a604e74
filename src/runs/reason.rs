//! Why a run ended as it did, as stable codes.

/// The stable code of a run that did not simply exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The dispatch may have reached the box, the box does not have the run, and now never will.
    DispatchAmbiguous,
    /// The box had the run; its directory is gone.
    RunDirectoryMissing,
    /// Its process is gone and left no exit status.
    ProcessMissingWithoutExitSentinel,
    /// As above, and the box was restarted in between.
    BoxRestarted,
    BoxStopped,
    BoxNotFound,
    BoxGone,
    /// The deadline passed while it ran.
    RunDurationExceeded,
    /// The deadline passed before it could be dispatched.
    NotStartedInTime,
    /// The box could not create, write or start it.
    LaunchRefused,
    BoxUnauthorized,
    BoxBillingRequired,
    BoxRequestRefused,
    BoxNotReady,
    /// Its secrets can't be opened with the keys configured.
    SecretUnreadable,
}

impl FailureReason {
    /// The code as stored and shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DispatchAmbiguous => "dispatch_ambiguous",
            Self::RunDirectoryMissing => "run_directory_missing",
            Self::ProcessMissingWithoutExitSentinel => "process_missing_without_exit_sentinel",
            Self::BoxRestarted => "box_restarted",
            Self::BoxStopped => "box_stopped",
            Self::BoxNotFound => "box_not_found",
            Self::BoxGone => "box_gone",
            Self::RunDurationExceeded => "run_duration_exceeded",
            Self::NotStartedInTime => "not_started_in_time",
            Self::LaunchRefused => "launch_refused",
            Self::BoxUnauthorized => "box_unauthorized",
            Self::BoxBillingRequired => "box_billing_required",
            Self::BoxRequestRefused => "box_request_refused",
            Self::BoxNotReady => "box_not_ready",
            Self::SecretUnreadable => "secret_unreadable",
        }
    }
}
