//! What operators and their machines ask of a process, and what they are given to run it with.

mod alerts;
mod deploy;
mod health;
mod logs;
mod process;
mod runbook;
mod scrape;
mod traces;
