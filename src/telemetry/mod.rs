//! What is measured. The only module that names the metrics crates: whoever has something to count calls a function here.
//!
//! Nothing is kept until a process asks for it ([`Measured`]); until then each call costs next to nothing, so that the
//! library may be used without. No label has a value that a caller chooses: no ids, no principals, no paths.

pub mod catalogue;

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use catalogue::{CATALOGUE, Exporter, Metric, MetricKind};

/// Bounds of all histograms, in seconds: from a statement of the database to a run that waits for a paused kind.
const BUCKETS_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// What this process has measured so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured(&'static PrometheusHandle);

impl Measured {
    /// From here on the process keeps what it measures, as a worker or as a web process.
    pub fn by(exporter: Exporter) -> Self {
        static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = HANDLE.get_or_init(|| {
            let recorder = recorder();
            let handle = recorder.handle();
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("the program around this keeps its metrics elsewhere; they are not exported here");
            }
            handle
        });
        describe();
        begin_at_zero(exporter);
        Self(handle)
    }

    /// As Prometheus reads it.
    pub fn rendered(self) -> String {
        self.0.render()
    }

    /// To be called every few seconds: the values of histograms pile up where nobody scrapes.
    pub fn tidy_up(self) {
        self.0.run_upkeep();
    }
}

/// The text of gauges that are read at each scrape: what could not be read is left out, not repeated from before.
pub(crate) fn rendered(set: impl FnOnce()) -> String {
    let recorder = recorder();
    metrics::with_local_recorder(&recorder, || {
        describe();
        set();
    });
    recorder.handle().render()
}

/// Sets a gauge.
#[expect(clippy::cast_precision_loss, reason = "nothing that is counted comes near 2^52")]
pub(crate) fn set_count(metric: &Metric, labels: &[(&'static str, &'static str)], value: i64) {
    set(metric, labels, value as f64);
}

/// Sets a gauge.
pub(crate) fn set(metric: &Metric, labels: &[(&'static str, &'static str)], value: f64) {
    let labels: Vec<Label> = labels.iter().map(|(key, value)| Label::new(*key, *value)).collect();
    gauge!(metric.name, labels).set(value);
}

/// A job was claimed, `lateness` after it could have been; `lapsed`: the lease of another worker had lapsed.
pub(crate) fn job_claimed(kind: &'static str, lateness: Duration, lapsed: bool) {
    histogram!(catalogue::JOB_LATENESS.name, "kind" => kind).record(lateness);
    if lapsed {
        counter!(catalogue::LEASES_LAPSED.name, "kind" => kind).increment(1);
    }
}

/// A transaction that finishes a job ended, with this result.
pub(crate) fn commit_ended(result: &'static str, took: Duration) {
    histogram!(catalogue::COMMIT_DURATION.name, "result" => result).record(took);
}

/// A piece of a job's work on the database failed.
pub(crate) fn database_retried() {
    counter!(catalogue::DATABASE_RETRIES.name).increment(1);
}

/// A box has a run, so long after its admission.
pub(crate) fn run_dispatched(delay: Duration) {
    histogram!(catalogue::DISPATCH_DELAY.name).record(delay);
}

/// A run ended in this state.
pub(crate) fn run_finished(state: &'static str) {
    counter!(catalogue::RUNS_FINISHED.name, "state" => state).increment(1);
}

/// Output was released, and so many bytes of the log before it were skipped.
pub(crate) fn output_released(bytes: usize, skipped_bytes: u64) {
    counter!(catalogue::OUTPUT.name).increment(widened(bytes));
    if skipped_bytes > 0 {
        counter!(catalogue::OUTPUT_GAPS.name).increment(1);
        counter!(catalogue::OUTPUT_SKIPPED.name).increment(skipped_bytes);
    }
}

/// An attempt to deliver a webhook was written down; `given_up`: it was the last one.
pub(crate) fn webhook_attempted(outcome: &'static str, given_up: bool) {
    counter!(catalogue::WEBHOOK_ATTEMPTS.name, "outcome" => outcome).increment(1);
    if given_up {
        counter!(catalogue::WEBHOOKS_GIVEN_UP.name).increment(1);
    }
}

/// The provider answered, or was given up.
pub(crate) fn provider_answered(operation: &'static str, outcome: &'static str, took: Duration) {
    counter!(catalogue::PROVIDER_REQUESTS.name, "operation" => operation, "outcome" => outcome).increment(1);
    histogram!(catalogue::PROVIDER_REQUEST_DURATION.name, "operation" => operation).record(took);
}

/// A request was answered. `route` is a template, `method` one of a few.
pub(crate) fn http_answered(route: &str, method: &'static str, status: u16, took: Duration) {
    let (route, status) = (route.to_owned(), status.to_string());
    let answered = counter!(
        catalogue::HTTP_REQUESTS.name,
        "route" => route.clone(), "method" => method, "status" => status
    );
    answered.increment(1);
    histogram!(catalogue::HTTP_REQUEST_DURATION.name, "route" => route, "method" => method).record(took);
}

/// A run was asked for by HTTP.
pub(crate) fn admission(outcome: &'static str) {
    counter!(catalogue::ADMISSIONS.name, "outcome" => outcome).increment(1);
}

/// A stream that is counted as open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(());

impl OpenStream {
    pub fn begin() -> Self {
        gauge!(catalogue::STREAMS_OPEN.name).increment(1.0);
        Self(())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        gauge!(catalogue::STREAMS_OPEN.name).decrement(1.0);
    }
}

/// An event was sent on a stream.
pub(crate) fn stream_event(event: &'static str) {
    counter!(catalogue::STREAM_EVENTS.name, "event" => event).increment(1);
}

fn recorder() -> PrometheusRecorder {
    let builder = PrometheusBuilder::new().set_buckets(BUCKETS_SECONDS);
    builder.expect("there are buckets").build_recorder()
}

fn describe() {
    for metric in CATALOGUE {
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, metric.help),
            MetricKind::Gauge => describe_gauge!(metric.name, metric.help),
            MetricKind::Histogram => describe_histogram!(metric.name, metric.help),
        }
    }
}

/// A counter that is not there before its first event has no first event for who watches its growth.
fn begin_at_zero(by: Exporter) {
    let own = CATALOGUE.iter().filter(|metric| metric.by == by);
    for metric in own.filter(|metric| metric.labels.is_empty()) {
        match metric.kind {
            MetricKind::Counter => counter!(metric.name).increment(0),
            MetricKind::Gauge => gauge!(metric.name).increment(0.0),
            MetricKind::Histogram => {}
        }
    }
    if by == Exporter::Worker {
        for kind in ["start", "poll", "stop", "cleanup"] {
            counter!(catalogue::LEASES_LAPSED.name, "kind" => kind).increment(0);
        }
        counter!(catalogue::WEBHOOK_ATTEMPTS.name, "outcome" => "delivered").increment(0);
        for state in ["completed", "failed", "cancelled", "timed_out", "lost"] {
            counter!(catalogue::RUNS_FINISHED.name, "state" => state).increment(0);
        }
    }
}

fn widened(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_our_prefix_and_end_in_their_unit() {
        for metric in CATALOGUE {
            let name = metric.name;
            assert!(name.starts_with("boxrun_"), "{name}");
            assert!(
                name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{name} is made of small letters"
            );
            assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
            assert!(
                metric.kind != MetricKind::Histogram || name.ends_with("_seconds"),
                "{name}: its buckets are seconds"
            );
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn each_metric_is_there_once() {
        let mut names: Vec<_> = CATALOGUE.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOGUE.len());
    }

    #[test]
    fn gauges_of_a_scrape_are_gone_in_the_next_one() {
        let first = rendered(|| set_count(&catalogue::JOBS, &[("kind", "poll"), ("status", "due")], 7));
        assert!(
            first.contains("boxrun_jobs{kind=\"poll\",status=\"due\"} 7\n"),
            "{first}"
        );
        assert!(first.contains("# HELP boxrun_jobs "), "{first}");
        let second = rendered(|| set_count(&catalogue::DATABASE_UP, &[], 0));
        assert!(
            second.contains("boxrun_database_up 0\n") && !second.contains("boxrun_jobs"),
            "{second}"
        );
    }
}
