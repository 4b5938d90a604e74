//! Each rule is needed: without it the checker finds a way to break a promise.

use std::collections::BTreeSet;

use stateright::{Checker as _, HasDiscoveries, Model as _};

use super::properties::{ALONE, NO_FALSE_LOSS, NO_LATE_START, ONE_DISPATCH, ONE_START, OWN_STATUS, WHOLE_OUTPUT};
use super::protocol::Protocol;
use super::rules::{Budget, Rules};

/// Checks the protocol under `rules` until `broken` is found to be, and prints how.
fn caught(rules: Rules, runs: usize, faults: u8, broken: &'static str) {
    let model = Protocol {
        rules,
        runs,
        budget: Budget {
            faults,
            cancels: 1,
            deadlines: 1,
        },
    };
    let found = HasDiscoveries::AnyOf(BTreeSet::from([broken]));
    let checker = model.checker().threads(2).finish_when(found).spawn_bfs().join();
    let path = checker.discovery(broken);
    let path = path.unwrap_or_else(|| panic!("not found to be broken: {broken}"));
    eprintln!("not: {broken}, after {:?}", path.into_actions());
}

#[test]
fn without_a_tombstone_a_late_dispatch_starts_what_was_given_up() {
    let rules = Rules {
        tombstone: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, NO_LATE_START);
}

#[test]
fn without_the_launch_lock_a_late_wrapper_starts_what_was_given_up() {
    let rules = Rules {
        launch_lock: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, NO_LATE_START);
}

#[test]
fn without_the_directory_as_a_lock_a_doubled_dispatch_starts_twice() {
    let rules = Rules {
        directory_lock: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, ONE_START);
}

#[test]
fn without_the_fence_a_worker_that_was_frozen_dispatches_again() {
    let rules = Rules {
        fence: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, ONE_DISPATCH);
}

#[test]
fn with_the_exit_read_before_alive_an_end_is_taken_for_a_loss() {
    let rules = Rules {
        alive_before_exit: false,
        ..Rules::ALL
    };
    caught(rules, 1, 0, NO_FALSE_LOSS);
}

#[test]
fn with_the_log_read_before_the_exit_the_last_lines_are_missing() {
    let rules = Rules {
        log_after_exit: false,
        ..Rules::ALL
    };
    caught(rules, 1, 0, WHOLE_OUTPUT);
}

#[test]
fn without_word_of_the_kill_its_exit_is_taken_for_the_commands_own() {
    let rules = Rules {
        kill_requested: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, OWN_STATUS);
}

#[test]
fn without_a_durable_claim_a_crash_dispatches_again() {
    let rules = Rules {
        claim_before_dispatch: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, ONE_DISPATCH);
}

#[test]
fn without_doubt_an_unanswered_dispatch_is_sent_again() {
    let rules = Rules {
        doubt: false,
        ..Rules::ALL
    };
    caught(rules, 1, 1, ONE_DISPATCH);
}

#[test]
fn without_a_look_at_the_run_before_a_command_starts_beside_it() {
    let rules = Rules {
        predecessor: false,
        ..Rules::ALL
    };
    caught(rules, 2, 1, ALONE);
}
