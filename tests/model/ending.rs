//! Every run ends: from any world, once nothing goes wrong any more, a fair order of steps leads to its end.
//!
//! An `eventually` of the checker would not do: polls that bring nothing new lead back to the same world.

use super::protocol::{Action, Protocol};
use super::rules::Budget;
use super::world::{Step, WORKERS, Worker, World};

/// More steps than any way to the end takes.
const STEPS_MAX: usize = 120;

/// All runs get to a terminal state, their jobs come to rest, and no process is left on the box. It is enough to look at
/// worlds where nobody is busy and nothing is under way: every other one leads to such a one, which is visited too.
pub fn every_run_ends(protocol: &Protocol, world: &World) -> bool {
    let is_calm = world.workers == [Worker::Idle; WORKERS] && world.requests.is_empty();
    !is_calm || ends(protocol, world)
}

fn ends(protocol: &Protocol, world: &World) -> bool {
    let mut world = world.clone();
    world.budget = Budget::default();
    for row in world.rows.iter_mut().flatten().filter(|row| !row.is_over()) {
        row.past_deadline = true;
    }
    for _ in 0..STEPS_MAX {
        let Some(action) = next(&world) else {
            let alive: u8 = world.places.iter().map(super::machine::Place::alive).sum();
            return world.all_over() && alive == 0;
        };
        protocol.act(&mut world, action);
    }
    false
}

fn next(world: &World) -> Option<Action> {
    if !world.box_is_up {
        return Some(Action::BoxResumes);
    }
    if let Some(run) = (0..world.places.len()).find(|run| {
        let directory = world.places[*run].directory();
        directory.is_some_and(|directory| directory.starting > 0)
    }) {
        return Some(Action::WrapperComes(run));
    }
    if !world.requests.is_empty() {
        return Some(Action::Arrives {
            request: 0,
            late: true,
            lost: false,
        });
    }
    for (index, worker) in world.workers.iter().enumerate() {
        match worker {
            Worker::Idle => {}
            Worker::Busy {
                step: Step::Wait(_), ..
            } => return Some(Action::CallFails(index)),
            Worker::Busy { .. } => return Some(Action::Work(index)),
        }
    }
    // Nobody is busy: a lease that somebody held lapses. Cleanups go first, for a start may wait for one.
    let claimable = (0..world.jobs.len()).filter(|run| world.jobs[*run].is_some_and(|job| !job.resting));
    let run = claimable.min_by_key(|run| world.rows[*run].is_some_and(|row| !row.is_over()))?;
    Some(Action::Claim(0, run))
}
