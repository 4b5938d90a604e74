//! The rules that the promises rest on, each of which can be left out, and how much may go wrong.

/// All hold in the product. A variant without one of them must be caught.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule that can be left out")]
pub struct Rules {
    /// Whoever finds nothing on the box leaves a tombstone in its place (`tombstone.sh`).
    pub tombstone: bool,
    /// A wrapper whose launch is taken starts nothing (`wrapper.sh`).
    pub launch_lock: bool,
    /// A dispatch that finds the run directory starts nothing (`dispatch.sh`).
    pub directory_lock: bool,
    /// Only who holds the lease commits (`finish.sql`, `hold`).
    pub fence: bool,
    /// A poll looks whether the run is alive before it looks for its exit (`poll.sh`).
    pub alive_before_exit: bool,
    /// A poll reads the log after the exit (`poll.sh`).
    pub log_after_exit: bool,
    /// A stop leaves word on the box before it kills (`kill.sh`).
    pub kill_requested: bool,
    /// The dispatch claim is durable before anything is sent (`jobs/start.rs`).
    pub claim_before_dispatch: bool,
    /// An unanswered dispatch may have run (`error_table.rs`).
    pub doubt: bool,
    /// A start waits until an earlier run of the box is verified dead (`earlier_run_lives`).
    pub predecessor: bool,
}

impl Rules {
    pub const ALL: Self = Self {
        tombstone: true,
        launch_lock: true,
        directory_lock: true,
        fence: true,
        alive_before_exit: true,
        log_after_exit: true,
        kill_requested: true,
        claim_before_dispatch: true,
        doubt: true,
        predecessor: true,
    };
}

/// What may still happen that need not. Beyond it nothing is bounded: requests arrive in any order and as late as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    /// Of any kinds, in any combination: a worker dies with all that it knows; the database does what a worker asks for, and
    /// its answer is lost; a lease lapses under a living worker, which
    /// goes on later as if nothing had happened; a request never arrives, or its answer never comes back; somebody no longer
    /// waits for a request that is still under way; a request arrives twice; one is certainly not taken up; the box loses
    /// all its processes; the box is stopped and takes no commands until it is resumed.
    pub faults: u8,
    /// Callers that want a run ended.
    pub cancels: u8,
    /// Deadlines that pass while the run is not over.
    pub deadlines: u8,
}
