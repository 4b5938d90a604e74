//! The integration tests, one crate so that they link once.

#![allow(
    clippy::disallowed_methods,
    reason = "tests look at the machine itself: its clock, its environment, with a client of their own"
)]

mod architecture;
mod box_client;
mod cleanup;
mod crash;
mod local_postgres;
mod operate;
mod ops;
mod output;
mod provider_sdk;
mod queue;
mod robustness;
mod runs;
mod scenarios;
mod scripts;
mod secrets;
mod simulator;
mod sql;
mod support;
mod web;
mod webhooks;
