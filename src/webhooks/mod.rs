//! Webhooks: a principal's web app is told when a run has ended, as the Standard Webhooks specification has it.
//!
//! The deliveries are an outbox. A trigger (`migrations/0008_webhooks.sql`) writes one row per webhook in the transaction
//! that makes the run terminal; workers claim them and send. Each is sent at least once until the receiver answers 2xx or
//! it is given up, under one `webhook-id`.
//!
//! It is the queue's protocol over a table of its own ([`outbox`]): one statement claims what is due under a fresh lease,
//! one finishes it fenced by that lease, failures back off ([`crate::queue::Backoff`]), NOTIFY wakes by way of the queue's
//! own LISTEN connection, a timer is the guarantee. Two things are simpler than there. An attempt is short and bounded, so
//! its lease is taken once for long enough and never renewed. And there is one kind, so no lanes and no apalis: a slot is a
//! permit ([`worker`]).
//!
//! Sending touches no run: it has slots and time-outs of its own, and neither a connection to the database nor a
//! transaction is held during a call.

mod body;
mod deliver;
pub mod deliveries;
mod outbox;
mod outcome;
pub mod registry;
pub mod sign;
mod target;
mod url;
pub mod worker;

pub use deliver::WebhookClientError;
pub use outbox::remove_expired;
pub use url::{InvalidUrl, URL_MAX_BYTES, WebhookUrl};
pub use worker::{Deliverer, WebhookOptions};
