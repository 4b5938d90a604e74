//! What must hold, scenario by scenario: a run's life against a box that answers by a script, and how often it was asked.

mod admission;
mod cleanup;
mod output;
mod poll;
mod recovery;
mod start;
mod stop;
