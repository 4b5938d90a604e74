//! What every request works with.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock as _;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio_util::sync::CancellationToken;

use super::followers::Followers;
use super::problem::Problem;
use crate::box_api::BoxClient;
use crate::ops::Process;
use crate::queue::LivePool;
use crate::runs::masking::Masker;
use crate::runs::{Principal, Run, RunView, SecretKeys};

/// A principal may send its rate for so many seconds at once.
const BURST_SECONDS: u32 = 5;

/// Shared by all requests of one process; clones are handles on the same one.
#[derive(Clone)]
pub(super) struct App(Arc<Shared>);

pub(super) struct Shared {
    pub pool: LivePool,
    pub process: Process,
    pub client: BoxClient,
    pub masker: Masker,
    pub secret_keys: Option<SecretKeys>,
    /// The longest deadline that may be asked for.
    pub max_duration: Duration,
    pub followers: Followers,
    /// The process is to end: streams end, so that their readers go on elsewhere.
    pub stopping: CancellationToken,
    rate: Option<DefaultKeyedRateLimiter<Principal>>,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// What an app is made of.
pub(super) struct Parts {
    pub pool: LivePool,
    pub process: Process,
    pub client: BoxClient,
    pub masker: Masker,
    pub secret_keys: Option<SecretKeys>,
    pub max_duration: Duration,
    pub stopping: CancellationToken,
    pub rate_per_second: Option<NonZeroU32>,
}

impl App {
    pub(super) fn new(parts: Parts) -> Self {
        let rate = parts.rate_per_second.map(|rate| {
            let burst = rate.saturating_mul(NonZeroU32::new(BURST_SECONDS).expect("a constant"));
            RateLimiter::keyed(Quota::per_second(rate).allow_burst(burst))
        });
        Self(Arc::new(Shared {
            followers: Followers::new(parts.pool.clone()),
            pool: parts.pool,
            process: parts.process,
            client: parts.client,
            masker: parts.masker,
            secret_keys: parts.secret_keys,
            max_duration: parts.max_duration,
            stopping: parts.stopping,
            rate,
        }))
    }

    /// A connection to the database.
    pub(super) async fn connection(&self) -> Result<PoolConnection<Postgres>, Problem> {
        Ok(self.pool.get().acquire().await?)
    }

    /// A run as it may be shown.
    pub(super) fn view(&self, run: &Run) -> RunView {
        RunView::of(run, &self.masker)
    }

    /// Counts a request of `principal`.
    pub(super) fn count(&self, principal: &Principal) -> Result<(), Problem> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.check_key(principal).map_err(|early| {
            let wait = early.wait_time_from(governor::clock::DefaultClock::default().now());
            let message = "too many requests of one principal; try again a little later";
            Problem::new(
                axum::http::StatusCode::TOO_MANY_REQUESTS,
                "box_api_rate_limited",
                message,
            )
            .after(wait.as_secs() + 1)
        })
    }

    /// Forgets principals that have not asked for a while.
    pub(super) fn forget_idle_principals(&self) {
        if let Some(rate) = &self.rate {
            rate.retain_recent();
            rate.shrink_to_fit();
        }
    }
}
