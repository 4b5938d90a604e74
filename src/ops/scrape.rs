//! `GET /metrics`, as Prometheus reads it.

use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Process;
use super::backlog::KindBacklog;
use crate::telemetry::{self, catalogue};

/// The text format of Prometheus.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Process {
    /// All that is known now: what the process counted, its pools, and what the database says, if it says anything.
    pub async fn scrape(&self) -> Response {
        let backlog = self.0.backlog.read().await;
        let read_now = telemetry::rendered(|| {
            let version = env!("CARGO_PKG_VERSION");
            telemetry::set_count(&catalogue::BUILD_INFO, &[("version", version)], 1);
            self.set_pools();
            telemetry::set_count(&catalogue::DATABASE_UP, &[], i64::from(backlog.is_some()));
            if let Some(kinds) = &backlog {
                set_backlog(kinds);
            }
        });
        let counted = self.0.measured.rendered();
        ([(header::CONTENT_TYPE, CONTENT_TYPE)], read_now + &counted).into_response()
    }

    fn set_pools(&self) {
        for (name, pool) in &self.0.parts.pools {
            let pool = pool.get();
            let idle = i64::try_from(pool.num_idle()).unwrap_or(i64::MAX);
            let open = i64::from(pool.size());
            let metric = &catalogue::DATABASE_POOL_CONNECTIONS;
            telemetry::set_count(metric, &[("pool", name), ("state", "idle")], idle);
            // The two are not read at the same moment.
            telemetry::set_count(metric, &[("pool", name), ("state", "in_use")], (open - idle).max(0));
            let most = i64::from(pool.options().get_max_connections());
            telemetry::set_count(&catalogue::DATABASE_POOL_CONNECTIONS_MAX, &[("pool", name)], most);
        }
    }
}

fn set_backlog(kinds: &[KindBacklog]) {
    for seen in kinds {
        let kind = seen.kind.as_str();
        let of_kind = [("kind", kind)];
        telemetry::set(&catalogue::OLDEST_DUE_JOB_AGE, &of_kind, seen.oldest_due_seconds);
        for (status, count) in [
            ("due", seen.due),
            ("scheduled", seen.scheduled),
            ("leased", seen.leased),
        ] {
            telemetry::set_count(&catalogue::JOBS, &[("kind", kind), ("status", status)], count);
        }
        telemetry::set_count(&catalogue::KIND_PAUSED, &of_kind, i64::from(seen.paused));
        telemetry::set_count(&catalogue::RUNS_PAST_DEADLINE, &[], seen.runs_past_deadline);
        let delivery_age = &catalogue::OLDEST_DUE_WEBHOOK_DELIVERY_AGE;
        telemetry::set(delivery_age, &[], seen.oldest_due_delivery_seconds);
        telemetry::set_count(&catalogue::WORKERS_LIVE, &[], seen.workers_live);
    }
}
