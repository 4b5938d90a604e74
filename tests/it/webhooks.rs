//! Webhooks: the outbox that the end of a run writes, real deliveries to a receiver in this process, and their HTTP API.

mod attempts;
mod interface;
mod lease;
mod outbox;
pub mod receiver;
mod snippet;
mod stage;
mod targets;
