//! What must hold in every world that can be reached, and what must be reachable at all.

use boxrun::runs::{FailureReason, RunState};
use stateright::Property;

use super::ending;
use super::machine::{LOG_LINES, OWN_EXIT};
use super::protocol::Protocol;
use super::row::Row;
use super::world::{History, World};

pub const ONE_DISPATCH: &str = "a command is dispatched at most once";
pub const ONE_START: &str = "a command starts at most once";
pub const FINAL: &str = "a terminal state is never left";
pub const NO_LATE_START: &str = "what is said never to have started, or to be dead, never starts later";
pub const DEAD: &str = "cancelled only when asked for and dead";
pub const OWN_END: &str = "a run that ended by itself is never called killed";
pub const OWN_STATUS: &str = "an exit status is the command's own";
pub const WHOLE_OUTPUT: &str = "a run with an exit has all its output";
pub const NO_FALSE_LOSS: &str = "no process is missed while its box stays";
pub const ALONE: &str = "no command starts beside another one of its box";
pub const ENDS: &str = "once nothing goes wrong any more every run ends, and nothing of it is left";

type Of = Property<Protocol>;

pub fn all() -> Vec<Of> {
    let mut properties = vec![
        Of::always(ONE_DISPATCH, |_, world| every(world, |_, past| past.dispatches <= 1)),
        Of::always(ONE_START, |_, world| every(world, |_, past| past.starts <= 1)),
        Of::always(FINAL, |_, world| every(world, |_, past| !past.left_its_end)),
        Of::always(NO_LATE_START, |_, world| every(world, |_, past| !past.started_too_late)),
        Of::always(DEAD, |_, world| {
            (0..world.rows.len()).all(|run| match world.rows[run] {
                Some(row) if row.state == RunState::Cancelled => row.cancel.is_some() && world.places[run].alive() == 0,
                Some(_) | None => true,
            })
        }),
        Of::always(OWN_END, |_, world| {
            every(world, |_, past| !(past.ended_by_itself && past.called_killed))
        }),
        Of::always(OWN_STATUS, |_, world| {
            every(world, |row, past| {
                row.exit.is_none_or(|exit| exit == OWN_EXIT && past.starts > 0)
            })
        }),
        Of::always(WHOLE_OUTPUT, |_, world| {
            every(world, |row, _| {
                !(row.is_over() && row.exit.is_some()) || row.log_offset == LOG_LINES
            })
        }),
        Of::always(NO_FALSE_LOSS, |_, world| {
            every(world, |row, _| {
                row.reason != Some(FailureReason::ProcessMissingWithoutExitSentinel)
                    && row.reason != Some(FailureReason::RunDirectoryMissing)
            })
        }),
        Of::always(ALONE, |_, world| every(world, |_, past| !past.started_beside_another)),
        Of::always(ENDS, ending::every_run_ends),
    ];
    properties.extend(reachable());
    properties
}

/// Without these the others could hold because nothing happens.
fn reachable() -> Vec<Of> {
    vec![
        Of::sometimes("completed", |_, world| {
            some(world, |row, _| row.state == RunState::Completed)
        }),
        Of::sometimes("killed and cancelled", |_, world| {
            some(world, |row, past| {
                row.state == RunState::Cancelled && past.called_killed
            })
        }),
        Of::sometimes("killed and timed out", |_, world| {
            some(world, |row, past| row.state == RunState::TimedOut && past.called_killed)
        }),
        Of::sometimes("timed out without an answer", |_, world| {
            some(world, |row, _| row.state == RunState::TimedOut && !row.end_verified)
        }),
        Of::sometimes("never sent and timed out", |_, world| {
            some(world, |row, _| row.reason == Some(FailureReason::NotStartedInTime))
        }),
        Of::sometimes("never sent and failed with its box", |_, world| {
            some(world, |row, _| {
                row.state == RunState::Failed && row.reason == Some(FailureReason::BoxStopped)
            })
        }),
        Of::sometimes("started and lost with its box", |_, world| {
            some(world, |row, past| {
                row.reason == Some(FailureReason::BoxRestarted) && past.starts > 0
            })
        }),
        Of::sometimes("never started and lost", |_, world| {
            some(world, |row, _| row.reason == Some(FailureReason::DispatchAmbiguous))
        }),
        Of::sometimes("found by a probe and completed", |_, world| {
            some(world, |row, past| {
                past.found_by_probe && row.state == RunState::Completed
            })
        }),
        Of::sometimes("a late dispatch meets the tombstone", |_, world| {
            some(world, |_, past| past.met_tombstone)
        }),
        Of::sometimes("taken over and completed", |_, world| {
            some(world, |row, past| past.taken_over && row.state == RunState::Completed)
        }),
    ]
}

fn every(world: &World, holds: impl Fn(&Row, &History) -> bool) -> bool {
    let rows = world.rows.iter().zip(&world.history);
    rows.filter_map(|(row, past)| Some((row.as_ref()?, past)))
        .all(|(row, past)| holds(row, past))
}

fn some(world: &World, holds: impl Fn(&Row, &History) -> bool) -> bool {
    !every(world, |row, past| !holds(row, past))
}
