//! The protocol as a model: callers, workers whose leases lapse, a database, and a box that is reached by requests that
//! may be lost, late or doubled. All worlds that can be reached are visited, and all must have the properties.
//!
//! The workers' decisions are the product's own (`runs::decide`), and so is what an outcome makes of a run
//! (`RunUpdate::applied_to`). The SQL of the queue and the scripts on the box are told again in `worker.rs` and
//! `machine.rs`, a few lines each. Left out: output beyond one line, retention, pauses, the clock (a job may be claimed
//! before it is due, a deadline passes at any moment), and children that a command leaves behind.

mod ending;
mod machine;
mod properties;
mod protocol;
mod row;
mod rules;
mod variants;
mod worker;
mod world;

use std::time::Instant;

use protocol::Protocol;
use rules::{Budget, Rules};
use stateright::{Checker as _, Model as _};

/// More faults in one life than the tests allow by themselves; each costs ten times the worlds.
const MORE_FAULTS: &str = "BOXRUN_MODEL_MORE_FAULTS";

#[test]
fn one_run_keeps_its_promises_whatever_goes_wrong() {
    check(1, 2);
}

#[test]
fn two_runs_of_one_box_keep_their_promises_whatever_goes_wrong() {
    check(2, 1);
}

/// Visits every world that two workers, one box and so many runs can come to, with so many faults of any kinds, a cancel
/// and a deadline that passes at any moment.
fn check(runs: usize, faults: u8) {
    let faults = faults + more_faults();
    let model = Protocol {
        rules: Rules::ALL,
        budget: Budget {
            faults,
            cancels: 1,
            deadlines: 1,
        },
        runs,
    };
    let began = Instant::now();
    let checker = model.checker().threads(2).spawn_bfs().join();
    eprintln!(
        "{runs} run(s), {faults} fault(s): {} worlds, {} steps between them, {} steps deep, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[expect(clippy::disallowed_methods, reason = "the tester's own setting")]
fn more_faults() -> u8 {
    std::env::var(MORE_FAULTS).map_or(0, |text| text.parse().expect("BOXRUN_MODEL_MORE_FAULTS is a number"))
}
