//! What all workers hold back together: requests after the provider asked for patience, starts after it refused the key.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::Instant;

use crate::queue::answered;
use crate::runs::decide::{CallFailure, Effect, Fault};

/// How long starts are held back after the provider refused the key.
const REFUSED_KEY_HOLD: Duration = Duration::from_secs(10);

/// This process's view of what is held back; the database spreads it (`boxrun.provider`, read with each heartbeat).
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Holds>);

#[derive(Debug, Default)]
struct Holds {
    requests_until: Option<Instant>,
    starts_until: Option<Instant>,
}

impl Throttle {
    /// The failure that a request would meet now, without sending it.
    pub(super) fn held(&self) -> Option<CallFailure> {
        let left = left(self.lock().requests_until)?;
        Some(CallFailure {
            effect: Effect::MaySendAgain,
            fault: Fault {
                code: "box_rate_limited",
                text: "the provider asked for patience; nothing was sent".to_owned(),
                retry_after: Some(left),
            },
        })
    }

    /// How much longer starts are held back.
    pub(super) fn starts_held(&self) -> Option<Duration> {
        left(self.lock().starts_until)
    }

    /// Takes notice of a failed call, and tells the other workers where they should hold back too.
    pub(super) async fn notice(&self, pool: &PgPool, failure: &CallFailure) {
        let (requests, starts) = match (failure.fault.code, failure.fault.retry_after) {
            ("box_rate_limited", Some(patience)) => (patience, Duration::ZERO),
            ("box_unauthorized" | "box_billing_required", _) => (Duration::ZERO, REFUSED_KEY_HOLD),
            _ => return,
        };
        if !starts.is_zero() && self.starts_held().is_none() {
            tracing::error!(
                code = failure.fault.code,
                "the provider refuses BOX_API_KEY; starts are held back and tried again every {} s until their deadlines",
                REFUSED_KEY_HOLD.as_secs()
            );
        }
        if !requests.is_zero() && self.held().is_none() {
            tracing::warn!(
                seconds = requests.as_secs(),
                "the provider asks for patience; no request is sent meanwhile"
            );
        }
        self.hold(requests, starts);
        let spread = sqlx::query!(
            "update boxrun.provider
                set requests_held_until = greatest(requests_held_until, clock_timestamp() + make_interval(secs => $1::float8)),
                    starts_held_until = greatest(starts_held_until, clock_timestamp() + make_interval(secs => $2::float8)),
                    updated_at = clock_timestamp()
              where coalesce(requests_held_until, '-infinity') < clock_timestamp() + make_interval(secs => $1::float8 - 1)
                and coalesce(starts_held_until, '-infinity') < clock_timestamp() + make_interval(secs => $2::float8 - 1)",
            requests.as_secs_f64(),
            starts.as_secs_f64(),
        );
        if let Err(error) = answered(spread.execute(pool)).await {
            tracing::debug!(%error, "could not tell the other workers to hold back");
        }
    }

    /// Reads what other workers were told.
    pub(super) async fn refresh(&self, pool: &PgPool) -> sqlx::Result<()> {
        let held = sqlx::query!(
            r#"select coalesce(extract(epoch from requests_held_until - clock_timestamp()), 0)::float8 as "requests!",
                      coalesce(extract(epoch from starts_held_until - clock_timestamp()), 0)::float8 as "starts!"
                 from boxrun.provider"#
        )
        .fetch_optional(pool)
        .await?;
        if let Some(held) = held {
            let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
            self.hold(duration(held.requests), duration(held.starts));
        }
        Ok(())
    }

    fn hold(&self, requests: Duration, starts: Duration) {
        let now = Instant::now();
        let mut holds = self.lock();
        holds.requests_until = holds.requests_until.max(Some(now + requests));
        holds.starts_until = holds.starts_until.max(Some(now + starts));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Holds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left(until: Option<Instant>) -> Option<Duration> {
    until
        .map(|until| until.saturating_duration_since(Instant::now()))
        .filter(|left| !left.is_zero())
}
