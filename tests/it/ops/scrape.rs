//! The list of metrics: it is what processes export and what docs/metrics.md says, and it costs the database little.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use boxrun::runs::RunState;
use boxrun::telemetry::catalogue::{CATALOGUE, Exporter, Metric, MetricKind};
use boxrun::web::tokens::{self, Scope};
use reqwest::Method;
use sqlx::{AssertSqlSafe, PgPool};

use super::process::{Process, Scrape};
use super::traces::{Caller, ends_with};
use crate::support::app::App;
use crate::support::box_says::started;
use crate::web::site::Site;

const BACKLOG: &str = include_str!("../../../src/ops/sql/backlog.sql");

fn exported_by(process: Exporter) -> BTreeSet<String> {
    let own = CATALOGUE
        .iter()
        .filter(|metric| metric.by == process || metric.by == Exporter::Both);
    own.map(|metric| metric.name.to_owned()).collect()
}

fn is_as_listed(scrape: &Scrape, process: Exporter) {
    let exported: BTreeSet<String> = scrape.families().into_iter().collect();
    assert_eq!(exported, exported_by(process), "{process:?}");
    for name in &exported {
        assert!(scrape.helped.contains(name), "{name} has no help");
    }
    for sample in &scrape.samples {
        let listed = CATALOGUE
            .iter()
            .find(|metric| sample.name.starts_with(metric.name) && is_part(metric, &sample.name));
        let listed = listed.unwrap_or_else(|| panic!("{} is not listed", sample.name));
        let labels: BTreeSet<&str> = sample
            .labels
            .keys()
            .map(String::as_str)
            .filter(|label| *label != "le")
            .collect();
        assert_eq!(labels, listed.labels.iter().copied().collect(), "{}", sample.name);
    }
}

/// Whether a sample's name is that of a metric, or of a part of a histogram.
fn is_part(metric: &Metric, sample: &str) -> bool {
    let rest = &sample[metric.name.len()..];
    match metric.kind {
        MetricKind::Counter | MetricKind::Gauge => rest.is_empty(),
        MetricKind::Histogram => ["_bucket", "_sum", "_count"].contains(&rest),
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_processes_export_is_what_is_listed_with_these_labels_and_help(pool: PgPool) {
    let app = App::idle(pool, [started(4242), ends_with("hello\n")]).await;
    let (worker, web) = (Process::worker(&app).await, Process::web(&app).await);
    let caller = Caller::of(&app, &web).await;
    let run = caller.starts("echo hello").await;
    app.wait_for(run, RunState::Completed).await;
    caller.follows(run).await;
    is_as_listed(&worker.scrape().await, Exporter::Worker);
    is_as_listed(&web.scrape().await, Exporter::Web);
    worker.stop().await;
    web.stop().await;
    app.finish().await;
}

#[test]
fn the_document_has_all_metrics_as_the_code_has_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let document = fs::read_to_string(path).expect("docs/metrics.md can be read");
    let mut table = "| metric | type | of | labels | meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for metric in CATALOGUE {
        let by = match metric.by {
            Exporter::Worker => "worker",
            Exporter::Web => "web",
            Exporter::Both => "both",
        };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let _ = writeln!(
            table,
            "| `{}` | {kind} | {by} | {} | {} |",
            metric.name,
            labels.join(", "),
            metric.help
        );
    }
    assert!(document.ends_with(&table), "docs/metrics.md should end with\n\n{table}");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn metrics_on_the_public_port_need_a_token_with_their_scope(pool: PgPool) {
    let site = Site::open(pool).await;
    let principal = site.app.principal.clone();
    site.ask(Method::GET, "/metrics")
        .send()
        .await
        .refuses(401, "unauthorized");
    let others: Vec<_> = Scope::ALL
        .into_iter()
        .filter(|scope| *scope != Scope::Metrics)
        .collect();
    let asking = async |scopes: &[Scope]| {
        let token = site.token_of(&principal, scopes).await;
        let asking = site.ask(Method::GET, "/metrics");
        asking.header("authorization", &format!("Bearer {token}")).send().await
    };
    asking(&others).await.refuses(403, "forbidden");
    let allowed = asking(&[Scope::Metrics]).await;
    assert_eq!(allowed.status, 200);
    assert_eq!(Scrape::of(&allowed.text).value("boxrun_database_up", &[]), Some(1.0));
    let made = tokens::create(&site.app.pool, &principal, &[Scope::Metrics], Some(0)).await;
    let expired = site
        .ask(Method::GET, "/metrics")
        .header("authorization", &format!("Bearer {}", made.unwrap().token));
    expired.send().await.refuses(401, "unauthorized");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_backlog_is_as_the_database_has_it(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let due = app.running("one").await;
    let other = app.another_box().await;
    let leased = app.running_as(app.new_run_on(&other, "two")).await;
    let other = app.another_box().await;
    let scheduled = app.running_as(app.new_run_on(&other, "three")).await;
    app.execute(
        "update boxrun.jobs set due_at = clock_timestamp() - interval '100 seconds' where run_id = $1",
        due,
    )
    .await;
    let lease = "update boxrun.jobs set lease = gen_random_uuid(), lease_until = clock_timestamp() + interval '1 hour',
                        leased_by = 'w' where run_id = $1";
    app.execute(lease, leased).await;
    let later = "update boxrun.jobs set due_at = clock_timestamp() + interval '1 hour' where run_id = $1";
    app.execute(later, scheduled).await;
    app.pass_deadline(due).await;
    sqlx::query("insert into boxrun.kind_pauses (kind, paused_by, reason) values ('poll', 'user:u1', 'test')")
        .execute(&app.pool)
        .await
        .unwrap();
    let scrape = web.measures("boxrun_kind_paused", &[("kind", "poll")], 1.0).await;
    for status in ["due", "leased", "scheduled"] {
        let labels = [("kind", "poll"), ("status", status)];
        assert_eq!(scrape.value("boxrun_jobs", &labels), Some(1.0), "{status}");
    }
    let age = |kind| {
        scrape
            .value("boxrun_oldest_due_job_age_seconds", &[("kind", kind)])
            .unwrap()
    };
    assert!((100.0..1000.0).contains(&age("poll")), "{}", age("poll"));
    assert!(age("start") < f64::EPSILON, "nothing of this kind waits");
    assert_eq!(scrape.value("boxrun_kind_paused", &[("kind", "start")]), Some(0.0));
    assert_eq!(scrape.value("boxrun_runs_past_deadline", &[]), Some(1.0));
    assert_eq!(scrape.value("boxrun_workers_live", &[]), Some(0.0));
    web.stop().await;
    app.finish().await;
}

/// Of many runs, as they are after a busy day.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_scrape_reads_indexes_only(pool: PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    for many in [
        // Without what they belong to, which only foreign keys would mind.
        "set session_replication_role = replica",
        "insert into boxrun.jobs (run_id, kind, due_at)
         select gen_random_uuid(), case when n % 100 = 0 then 'poll' else 'cleanup' end, now() + n * interval '1 second'
           from generate_series(-100, 50000) n",
        "insert into boxrun.runs (id, conversation_id, box_id, principal_type, command, idempotency_key, run_directory, state,
                                  exit_status, exit_learnt_at, finished_at, admitted_at, deadline_at, inserted_at, updated_at)
         select gen_random_uuid(), gen_random_uuid(), 'bx_8bhkse3n', 'user', 'true', n::text, '$HOME', 'completed',
                0, now(), now(), now(), now(), now(), now()
           from generate_series(1, 5000) n",
        "set session_replication_role = origin",
        "vacuum analyze boxrun.jobs, boxrun.runs",
    ] {
        sqlx::query(many).execute(&mut *conn).await.unwrap();
    }
    let explain = AssertSqlSafe(format!("explain {BACKLOG}"));
    let plan: Vec<String> = sqlx::query_scalar(explain)
        .bind(10_000_i64)
        .bind(20.0)
        .fetch_all(&mut *conn)
        .await
        .unwrap();
    let plan = plan.join("\n");
    for table in ["jobs", "runs"] {
        assert!(!plan.contains(&format!("Seq Scan on {table}")), "{plan}");
    }
    assert!(plan.contains("using jobs_claimable on jobs"), "{plan}");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn scrapes_that_come_together_ask_the_database_once(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let mut holder = app.pool.begin().await.unwrap();
    sqlx::query("lock table boxrun.jobs in access exclusive mode")
        .execute(&mut *holder)
        .await
        .unwrap();
    let waiting = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock' and query like '%What the metrics%'";
    let (scrapes, at_once) = tokio::join!(
        futures::future::join_all((0..5).map(|_| web.scrape())),
        crate::support::wait::wait_until(
            "a scrape waits for the lock",
            async || {
                // On another connection: in a transaction what was seen first is seen again.
                let count = sqlx::query_scalar::<_, i64>(waiting).fetch_one(&app.pool).await;
                count.unwrap()
            },
            |count| *count > 0
        )
    );
    assert_eq!(at_once, 1);
    for scrape in scrapes {
        assert_eq!(scrape.value("boxrun_database_up", &[]), Some(0.0));
    }
    drop(holder);
    web.stop().await;
    app.finish().await;
}
