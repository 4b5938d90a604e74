//! boxrun runs long shell commands detached on remote sandbox machines ("boxes") and follows each one durably until it ends.

pub mod box_api;
pub mod cli;
pub mod config;
mod http_server;
pub mod ids;
pub mod jobs;
pub mod ops;
pub mod postgres;
pub mod queue;
pub mod retry_after;
pub mod runs;
pub mod schema;
pub mod sim;
pub mod telemetry;
pub mod web;
pub mod webhooks;

/// The examples of the README compile against what there is.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
