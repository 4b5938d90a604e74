//! The domain: what a run is, what may happen to it, and its SQL. Knows no HTTP and no job queue.
//!
//! Decisions are pure: [`decide`] takes the run, what was observed on its box and the time, and returns a [`decide::Step`];
//! [`update`] writes it, naming the state that it expects. The database repeats the rules (`migrations/`), so that a
//! careless statement can't break them either.
//!
//! [`start_run`], [`get_run`], [`list_runs`], [`cancel()`] and [`read_output`] work inside the caller's transaction.

pub mod admission;
pub mod cancel;
pub mod conversations;
pub mod decide;
pub mod events;
pub mod masking;
pub mod output;
pub mod read;
mod reason;
mod run;
pub mod secrets;
mod state;
pub mod update;
pub mod view;

pub use admission::{NewRun, StartRunError, start_run};
pub use cancel::cancel;
pub use events::{Event, TimelineEntry};
pub use output::{OutputRead, read_output};
pub use read::{RunFilter, RunNotFound, get_run, list_runs};
pub use reason::FailureReason;
pub use run::{Principal, Run};
pub use secrets::{GitCredential, RunSecrets, Secret, SecretKeys};
pub use state::{Happening, RunState};
pub use view::RunView;
