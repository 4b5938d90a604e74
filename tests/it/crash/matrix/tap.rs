//! Where a worker's steps pass by: statements to the database, requests to the box. One of them meets the fault.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

/// What happens to the step that a cell is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The worker dies before the step is done.
    CrashBefore,
    /// The worker dies when the step is done, and has not heard of it.
    CrashAfter,
    /// The connection breaks before the step is done; the worker lives.
    RequestLost,
    /// The connection breaks when the step is done; the worker lives, and does a statement again.
    AnswerLost,
    /// The request arrives twice.
    Twice,
    /// The worker is frozen before the step until another one has the job, then goes on.
    LeaseLost,
}

impl Fault {
    pub const ALL: [Self; 6] = [
        Self::CrashBefore,
        Self::CrashAfter,
        Self::RequestLost,
        Self::AnswerLost,
        Self::Twice,
        Self::LeaseLost,
    ];
}

/// What a proxy does with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    Passes,
    Strikes(Fault),
}

/// What a worker was doing: the last it asked of a box, and what it asks now. Of equal steps only the first is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    pub after: &'static str,
    pub what: String,
    /// A request to the box, and no statement.
    pub is_request: bool,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {}: {}", self.after, self.what)
    }
}

#[derive(Debug, Default)]
struct Seen {
    after: Option<&'static str>,
    steps: Vec<Step>,
    known: HashSet<Step>,
    target: Option<(Step, Fault)>,
}

/// Both proxies of a worker report here.
#[derive(Debug)]
pub struct Tap {
    seen: Mutex<Seen>,
    struck: Semaphore,
    released: Semaphore,
}

impl Tap {
    pub fn new(target: Option<(Step, Fault)>) -> Self {
        let seen = Seen {
            target,
            ..Seen::default()
        };
        Self {
            seen: Mutex::new(seen),
            struck: Semaphore::new(0),
            released: Semaphore::new(0),
        }
    }

    /// A statement is about to be done; those that only find out how things are are no steps.
    pub fn statement(&self, what: &str) -> Passage {
        let after = self.seen().after.unwrap_or("admission");
        self.step(&Step {
            after,
            what: what.to_owned(),
            is_request: false,
        })
    }

    pub fn request(&self, what: &'static str) -> Passage {
        let after = self.seen().after.unwrap_or("admission");
        let passage = self.step(&Step {
            after,
            what: what.to_owned(),
            is_request: true,
        });
        self.seen().after = Some(what);
        passage
    }

    fn step(&self, step: &Step) -> Passage {
        let mut seen = self.seen();
        if seen.known.insert(step.clone()) {
            seen.steps.push(step.clone());
        }
        match seen.target.take_if(|(target, _)| target == step) {
            Some((_, fault)) => Passage::Strikes(fault),
            None => Passage::Passes,
        }
    }

    pub fn steps(&self) -> Vec<Step> {
        self.seen().steps.clone()
    }

    /// The proxy has the step in hand, as the fault wants it.
    pub fn strike(&self) {
        self.struck.add_permits(1);
    }

    pub async fn struck(&self) {
        let _ = self.struck.acquire().await;
    }

    /// The step goes on.
    pub fn release(&self) {
        self.released.add_permits(1);
    }

    pub async fn released(&self) {
        let _ = self.released.acquire().await;
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
