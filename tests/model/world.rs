//! Everything that a step may depend on: the database, the workers, what is under way, the box, and what really happened.

use std::hash::{DefaultHasher, Hash, Hasher};

use boxrun::runs::decide::{Activity, duty};

use super::machine::{Answer, Kind, Place, Stage};
use super::row::Row;
use super::rules::Budget;

pub const RUNS: usize = 2;
pub const WORKERS: usize = 2;

/// A row of `boxrun.jobs`. Its due time is left out: a job may be claimed early, which is more than can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    /// The worker whose lease it is; a worker here has one slot, so it is never busy with two leases.
    pub holder: Option<usize>,
    pub lapsed: bool,
    /// Nothing is due but the removal of the directory.
    pub resting: bool,
}

impl Job {
    pub const NEW: Self = Self {
        holder: None,
        lapsed: false,
        resting: false,
    };

    pub fn is_claimable(&self) -> bool {
        !self.resting && (self.holder.is_none() || self.lapsed)
    }
}

/// What a worker does next for the run that it has claimed; it knows the run as it was when it read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    LookForPredecessor,
    Claim,
    SendDispatch,
    Wait(Kind),
    Commit(Kind, Answer),
    /// The run was never sent: it ends without a word to the box.
    EndUnsent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Worker {
    Idle,
    Busy { run: usize, row: Row, step: Step },
}

/// A request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    pub run: usize,
    pub kind: Kind,
    pub stage: Stage,
    /// Who waits for the answer.
    pub asker: Option<usize>,
    /// It is under way twice. That one of the two is refused says nothing then, and is not told: a provider that takes a
    /// request up and refuses it as well is beyond help.
    pub doubled: bool,
}

/// What really happened to a run, which nobody in the protocol knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is something that happened or did not"
)]
pub struct History {
    /// Dispatches sent, without those that certainly were not taken up.
    pub dispatches: u8,
    pub starts: u8,
    /// The command ended before anybody on its box wanted it to.
    pub ended_by_itself: bool,
    /// A stop's word that it was killed was committed.
    pub called_killed: bool,
    pub started_too_late: bool,
    /// It started while an earlier run's command was alive.
    pub started_beside_another: bool,
    pub left_its_end: bool,
    pub taken_over: bool,
    pub found_by_probe: bool,
    pub met_tombstone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub rows: [Option<Row>; RUNS],
    pub jobs: [Option<Job>; RUNS],
    pub workers: [Worker; WORKERS],
    pub requests: Vec<Request>,
    pub places: [Place; RUNS],
    pub box_is_up: bool,
    pub budget: Budget,
    pub history: [History; RUNS],
}

impl World {
    pub fn new(budget: Budget) -> Self {
        Self {
            rows: [Some(Row::ADMITTED), None],
            jobs: [Some(Job::NEW), None],
            workers: [Worker::Idle; WORKERS],
            requests: Vec::new(),
            places: [Place::Nothing; RUNS],
            box_is_up: true,
            budget,
            history: [History::default(); RUNS],
        }
    }

    pub fn all_over(&self) -> bool {
        self.rows.iter().flatten().all(Row::is_over)
    }

    /// Writes a run's row, and notes when it changes though it was over.
    pub fn write(&mut self, run: usize, row: Row) {
        let before = self.rows[run].expect("the run was admitted");
        let verdict = |row: &Row| (row.state, row.exit, row.reason);
        if before.is_over() && verdict(&before) != verdict(&row) {
            self.history[run].left_its_end = true;
        }
        self.rows[run] = Some(row);
    }

    /// Nothing is left to do for the run, or what its row says (`duty`).
    pub fn duty(row: &Row) -> Option<Activity> {
        duty(&row.run())
    }

    /// Nobody waits for an answer on behalf of this worker any more.
    pub fn forget_asker(&mut self, worker: usize) {
        for request in &mut self.requests {
            if request.asker == Some(worker) {
                request.asker = None;
            }
        }
    }

    pub fn asks(&self, worker: usize) -> bool {
        self.requests.iter().any(|request| request.asker == Some(worker))
    }

    /// Workers are alike and requests have no order: one of the equal worlds stands for all.
    pub fn canonical(mut self) -> Self {
        let hash = |index: usize| {
            let mut hasher = DefaultHasher::new();
            self.workers[index].hash(&mut hasher);
            for job in self.jobs.iter().flatten() {
                (job.holder == Some(index)).hash(&mut hasher);
            }
            hasher.finish()
        };
        if hash(0) > hash(1) {
            self.workers.swap(0, 1);
            for holder in self.jobs.iter_mut().flatten().filter_map(|job| job.holder.as_mut()) {
                *holder = 1 - *holder;
            }
            for asker in self.requests.iter_mut().filter_map(|request| request.asker.as_mut()) {
                *asker = 1 - *asker;
            }
        }
        self.requests.sort_unstable();
        self
    }
}
