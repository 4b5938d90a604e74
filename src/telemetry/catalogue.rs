//! Every metric there is. docs/metrics.md is this list as a table.

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows; begins at 0 with the process.
    Counter,
    /// A value of now.
    Gauge,
    /// Counts values by size, as Prometheus' buckets have it.
    Histogram,
}

/// Who exports a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exporter {
    Worker,
    Web,
    Both,
}

/// A metric as it is exported. Its name ends in its unit; a counter's in `_total`.
#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub by: Exporter,
    /// None of them has values that a caller chooses.
    pub labels: &'static [&'static str],
    /// One sentence, without its full stop.
    pub help: &'static str,
}

/// Declares the metrics and, so that none is forgotten, the list of them.
macro_rules! metrics {
    ($($constant:ident = $kind:ident $by:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub const $constant: Metric = Metric {
            name: $name,
            kind: MetricKind::$kind,
            by: Exporter::$by,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All of them, in the order of docs/metrics.md.
        pub const CATALOGUE: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD_INFO = Gauge Both "boxrun_build_info" ["version"]
        "Always 1; the label is the program's version";
    DATABASE_UP = Gauge Both "boxrun_database_up" []
        "1 where the database answered this scrape, else 0; what is read from the database is left out then";
    DATABASE_POOL_CONNECTIONS = Gauge Both "boxrun_database_pool_connections" ["pool", "state"]
        "Open connections of the process's pools that are `idle` or `in_use`";
    DATABASE_POOL_CONNECTIONS_MAX = Gauge Both "boxrun_database_pool_connections_max" ["pool"]
        "Connections that a pool may open";

    OLDEST_DUE_JOB_AGE = Gauge Both "boxrun_oldest_due_job_age_seconds" ["kind"]
        "How long the oldest job that may be claimed has waited for a worker; 0: none waits. From the database";
    JOBS = Gauge Both "boxrun_jobs" ["kind", "status"]
        "Jobs that are `due`, `scheduled` or `leased`; of each kind at most 10000 that are due and 10000 others are counted. From the database";
    KIND_PAUSED = Gauge Both "boxrun_kind_paused" ["kind"]
        "1 where an operator paused the kind, else 0. From the database";
    RUNS_PAST_DEADLINE = Gauge Both "boxrun_runs_past_deadline" []
        "Runs that have not ended although their deadline has passed, at most 10000. From the database";
    OLDEST_DUE_WEBHOOK_DELIVERY_AGE = Gauge Both "boxrun_oldest_due_webhook_delivery_age_seconds" []
        "How long the oldest webhook delivery that may be claimed has waited for a worker; 0: none waits. From the database";
    WORKERS_LIVE = Gauge Both "boxrun_workers_live" []
        "Workers that gave a sign of life within 20 s and neither drain nor stop. From the database";

    JOB_LATENESS = Histogram Worker "boxrun_job_lateness_seconds" ["kind"]
        "From when a job could be claimed until this worker claimed it";
    LEASES_LAPSED = Counter Worker "boxrun_leases_lapsed_total" ["kind"]
        "Jobs that this worker claimed after the lease of another had lapsed, which had died, hung, or lost the database";
    DISPATCH_DELAY = Histogram Worker "boxrun_dispatch_delay_seconds" []
        "From a run's admission until it was known that its box has it";
    RUNS_FINISHED = Counter Worker "boxrun_runs_finished_total" ["state"]
        "Runs that this worker ended; one that is cancelled before anything of it was sent ends without a worker, and is not counted";
    COMMIT_DURATION = Histogram Worker "boxrun_commit_duration_seconds" ["result"]
        "Transactions that finish a job: `committed`, `stale` (the run changed meanwhile, and it is decided anew) or `fenced` (the lease was gone)";
    DATABASE_RETRIES = Counter Worker "boxrun_database_retries_total" []
        "Pieces of a job's work on the database that failed, and are tried again for two minutes";
    OUTPUT = Counter Worker "boxrun_output_bytes_total" []
        "Bytes of output that were released to readers";
    OUTPUT_GAPS = Counter Worker "boxrun_output_gaps_total" []
        "Gaps in the output of runs, where more was printed between two polls than is read";
    OUTPUT_SKIPPED = Counter Worker "boxrun_output_skipped_bytes_total" []
        "Bytes of those gaps";

    WEBHOOK_ATTEMPTS = Counter Worker "boxrun_webhook_attempts_total" ["outcome"]
        "Attempts to deliver a webhook: `delivered`, or the code of the failure";
    WEBHOOKS_GIVEN_UP = Counter Worker "boxrun_webhook_deliveries_given_up_total" []
        "Deliveries that are not attempted any more unless somebody asks for it";

    PROVIDER_REQUESTS = Counter Both "boxrun_provider_requests_total" ["operation", "outcome"]
        "Requests to the box provider that were answered or given up; the outcome is `ok` or the code of the error";
    PROVIDER_REQUEST_DURATION = Histogram Both "boxrun_provider_request_duration_seconds" ["operation"]
        "From sending such a request until its answer was read or given up";

    HTTP_REQUESTS = Counter Web "boxrun_http_requests_total" ["route", "method", "status"]
        "Requests that were answered, by the template of their route (`unmatched`: there is none)";
    HTTP_REQUEST_DURATION = Histogram Web "boxrun_http_request_duration_seconds" ["route", "method"]
        "Until the head of the answer was ready; a stream goes on after it, and `?wait=` is waited for before";
    ADMISSIONS = Counter Web "boxrun_admissions_total" ["outcome"]
        "Runs asked for by HTTP: `admitted`, `repeated`, or the code of the refusal";
    STREAMS_OPEN = Gauge Web "boxrun_streams_open" []
        "Streams of output that are being read";
    STREAM_EVENTS = Counter Web "boxrun_stream_events_total" ["event"]
        "Events sent on streams";
}
