//! Hearing that a job is due at once. Only a speed-up: whatever is missed, the claimer's timer finds.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::claimer::Claimer;
use super::hand::Interrupt;
use super::outage::Outage;
use super::silence::answered;
use super::wake::Wake;
use crate::ids::RunId;

/// The channel: a payload is a kind of job that is due, `webhook` (a delivery is), `orders` (a pause, a drain), or
/// `cancel:<run id>`.
const CHANNEL: &str = "boxrun_jobs";
/// A notification to oneself is sent this often; one that does not come back in time shows a half-open connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING: &str = "ping:";
const ORDERS: &str = "orders";
const DELIVERY: &str = "webhook";

/// One LISTEN connection of its own.
#[derive(Debug)]
pub struct Listener {
    database: PgConnectOptions,
    claimer: Claimer,
    deliveries: Arc<Wake>,
    ping_interval: Duration,
}

impl Listener {
    /// A listener that wakes `claimer` and tells holders of cancelled runs.
    #[must_use]
    pub fn new(database: PgConnectOptions, claimer: Claimer) -> Self {
        Self {
            database,
            claimer,
            deliveries: Arc::default(),
            ping_interval: PING_INTERVAL,
        }
    }

    /// Also wakes who delivers webhooks, so that a process needs no second LISTEN connection.
    #[must_use]
    pub fn waking_for_deliveries(self, deliveries: Arc<Wake>) -> Self {
        Self { deliveries, ..self }
    }

    /// With another time between two notifications to itself.
    #[must_use]
    pub fn pinging_every(self, ping_interval: Duration) -> Self {
        Self { ping_interval, ..self }
    }

    /// Listens until dropped; a lost connection is made anew.
    pub async fn run(self) {
        let mut outage = Outage::of("listening for jobs");
        loop {
            let delay = match self.listen(&mut outage).await {
                Ok(()) => {
                    tracing::warn!("the LISTEN connection does not answer; making a new one");
                    Duration::ZERO
                }
                Err(error) => outage.failed(&error),
            };
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns when the connection is half open.
    async fn listen(&self, outage: &mut Outage) -> sqlx::Result<()> {
        // A pool for each connection: one that is half open does not come back to its pool until TCP gives it up.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(self.database.clone());
        let mut listener = answered(PgListener::connect_with(&pool)).await?;
        listener.ignore_pool_close_event(true);
        answered(listener.listen(CHANNEL)).await?;
        outage.ended();
        // What became due or was ordered before LISTEN was heard by nobody.
        self.look_again();
        let mut ping = tokio::time::interval(self.ping_interval);
        ping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut unanswered = 0;
        loop {
            tokio::select! {
                heard = listener.try_recv() => match heard? {
                    Some(notification) => {
                        unanswered = 0;
                        self.hear(notification.payload());
                    }
                    // The connection was lost and is new again.
                    None => self.look_again(),
                },
                _ = ping.tick() => {
                    if unanswered >= 2 {
                        return Ok(());
                    }
                    unanswered += 1;
                    self.claimer.notify(CHANNEL, PING).await?;
                }
            }
        }
    }

    /// Something may have been said that nobody heard.
    fn look_again(&self) {
        self.claimer.orders_changed();
        self.deliveries.due_in(Duration::ZERO);
    }

    fn hear(&self, payload: &str) {
        if payload == PING {
            return;
        }
        if payload == ORDERS {
            self.claimer.orders_changed();
            return;
        }
        if payload == DELIVERY {
            self.deliveries.due_in(Duration::ZERO);
            return;
        }
        match payload.strip_prefix("cancel:").map(str::parse::<RunId>) {
            Some(Ok(run_id)) => {
                self.claimer.interrupt(run_id, Interrupt::Urgent);
                self.claimer.due_in(Duration::ZERO);
            }
            Some(Err(_)) => {}
            None => self.claimer.due_in(Duration::ZERO),
        }
    }
}
