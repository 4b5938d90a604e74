//! The durable job queue in PostgreSQL: claim, lease, renew, fenced finish, wake-up.
//!
//! A run has one driving job, whose kind changes over its life. Claiming it gives a fresh lease; only who holds the lease
//! may finish the job, and finishes it in the transaction that changes the run, so that a run and its job can't disagree.
//! A lease that is not renewed lapses, and the job is claimable again by itself: nobody needs to notice a crash.
//!
//! What is not here: what a job does (`jobs`), and what a run is (`runs`). Workers are driven by apalis through
//! [`backend`], and no other module names it. No worker's clock decides anything; all times are the database's.

pub mod backend;
mod backoff;
mod claim;
mod claimer;
mod finish;
mod hand;
mod kind;
mod listener;
pub mod operator;
mod orders;
mod outage;
pub mod overview;
mod silence;
mod wake;

pub use backoff::Backoff;
pub use claim::{ClaimedJob, Lease};
pub use claimer::{Claimer, ClaimerOptions, Lanes};
pub use finish::{Finish, NextJob, Remember, end_unheld, finish, give_back, hold};
pub use hand::{Hands, Interrupt};
pub use kind::JobKind;
pub use listener::Listener;
pub use outage::Outage;
pub use silence::{LivePool, answered, without_silent_connections};
pub use wake::Wake;
