//! What happens to runs and requests, as the metrics of real processes have it.

use boxrun::box_api::BoxErrorCode;
use boxrun::ids::RunId;
use boxrun::runs::RunState;
use boxrun::web::tokens::{self, Scope};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::process::{Process, command};
use crate::support::app::App;
use crate::support::box_says::{Sent, log, offset_of, refuses, says, started};
use crate::support::scripted_box::Answer;
use crate::webhooks::receiver::{self, Receiver};

/// The run has printed this and ended with exit status 0.
pub fn ends_with(printed: &str) -> Answer {
    log(printed.len(), printed.as_bytes(), "EXIT=0 ALIVE=0")
}

/// The app's user, at a web process.
pub struct Caller<'a> {
    app: &'a App,
    web: &'a Process,
    pub token: String,
}

impl<'a> Caller<'a> {
    pub async fn of(app: &'a App, web: &'a Process) -> Self {
        let scopes = [Scope::RunsRead, Scope::RunsWrite];
        let token = tokens::create(&app.pool, &app.principal, &scopes, None).await;
        Self {
            app,
            web,
            token: token.expect("a token").token,
        }
    }

    pub fn asks(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let address = self.web.users.expect("a web process");
        let request = self.web.client.request(method, format!("http://{address}{path}"));
        request.bearer_auth(&self.token)
    }

    pub fn conversation(&self) -> String {
        format!("/api/v1/conversations/{}", self.app.conversation)
    }

    pub fn run(&self, run: RunId) -> String {
        format!("{}/runs/{run}", self.conversation())
    }

    /// Asks for a run on the app's box: status and answer.
    pub async fn asks_for(&self, body: &Value) -> (u16, Value) {
        let path = format!("{}/boxes/{}/runs", self.conversation(), self.app.box_id);
        let asking = self
            .asks(Method::POST, &path)
            .header("content-type", "application/json");
        let reply = asking.body(body.to_string()).send().await.expect("an answer");
        let status = reply.status().as_u16();
        let text = reply.text().await.expect("a body");
        (status, serde_json::from_str(&text).expect("JSON"))
    }

    pub async fn starts(&self, command: &str) -> RunId {
        let key = Uuid::new_v4().to_string();
        let (status, run) = self
            .asks_for(&json!({"command": command, "idempotency_key": key}))
            .await;
        assert_eq!(status, 202, "{run}");
        run["run"]["id"].as_str().expect("an id").parse().expect("a run id")
    }

    /// Reads the stream of a run that has ended to its end.
    pub async fn follows(&self, run: RunId) -> String {
        let asking = self.asks(Method::GET, &format!("{}/stream", self.run(run)));
        asking.send().await.expect("a stream").text().await.expect("its end")
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_leaves_its_traces_in_the_workers_metrics(pool: PgPool) {
    let printed = "hello\nbye\n";
    let app = App::idle(pool, [started(4242), ends_with(printed)]).await;
    let worker = Process::worker(&app).await;
    let run = app.admit_unchecked("echo hello").await;
    app.wait_for(run, RunState::Completed).await;
    let finished = [("state", "completed")];
    let scrape = worker.measures("boxrun_runs_finished_total", &finished, 1.0).await;
    for (metric, labels, expected) in [
        ("boxrun_runs_finished_total", &[("state", "lost")][..], 0.0),
        ("boxrun_dispatch_delay_seconds_count", &[], 1.0),
        ("boxrun_job_lateness_seconds_count", &[("kind", "start")], 1.0),
        ("boxrun_job_lateness_seconds_count", &[("kind", "poll")], 1.0),
        (
            "boxrun_provider_requests_total",
            &[("operation", "get_box"), ("outcome", "ok")],
            1.0,
        ),
        (
            "boxrun_provider_requests_total",
            &[("operation", "dispatch"), ("outcome", "ok")],
            1.0,
        ),
        (
            "boxrun_provider_requests_total",
            &[("operation", "poll"), ("outcome", "ok")],
            1.0,
        ),
        (
            "boxrun_provider_request_duration_seconds_count",
            &[("operation", "dispatch")],
            1.0,
        ),
        ("boxrun_commit_duration_seconds_count", &[("result", "committed")], 2.0),
        ("boxrun_output_bytes_total", &[], 10.0),
        ("boxrun_output_gaps_total", &[], 0.0),
        ("boxrun_leases_lapsed_total", &[("kind", "poll")], 0.0),
        ("boxrun_database_retries_total", &[], 0.0),
        ("boxrun_workers_live", &[], 1.0),
    ] {
        assert_eq!(scrape.value(metric, labels), Some(expected), "{metric}{labels:?}");
    }
    worker
        .measures("boxrun_jobs", &[("kind", "cleanup"), ("status", "scheduled")], 1.0)
        .await;
    worker.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_refusal_of_the_provider_is_counted_with_its_code(pool: PgPool) {
    let app = App::idle(pool, []).await;
    app.server.answer_gets(refuses(401, "unauthorized"));
    let worker = Process::worker(&app).await;
    app.admit_unchecked("echo hello").await;
    let code = BoxErrorCode::BoxUnauthorized.as_str();
    let refused = [("operation", "get_box"), ("outcome", code)];
    worker.measures("boxrun_provider_requests_total", &refused, 1.0).await;
    worker.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_gap_in_the_output_is_counted_with_its_size(pool: PgPool) {
    let app = App::idle(pool, []).await;
    // More than is read; what is left of it is one line.
    let size = 3 * 1024 * 1024;
    app.server.answer_by(move |request| match Sent::of(request) {
        Sent::GetBox => Answer::box_state("bx_8bhkse3n", "ready"),
        Sent::Dispatch => started(4242),
        Sent::Poll => {
            let offset = offset_of(request);
            let data = if offset == 0 {
                "y\n".repeat(50)
            } else {
                "y\n".repeat((size - offset).min(65536) / 2)
            };
            log(size, data.as_bytes(), "EXIT=0 ALIVE=0")
        }
        Sent::Probe | Sent::Stop | Sent::Cleanup => says("PRESENT=0"),
    });
    let worker = Process::worker(&app).await;
    let run = app.admit("yes").await;
    app.wait_for(run, RunState::Completed).await;
    let events = "select count(*)::float8, sum((detail->>'bytes')::bigint)::float8 from boxrun.run_events
                   where run_id = $1 and event = 'output_skipped'";
    let (gaps, skipped): (f64, f64) = sqlx::query_as(events).bind(run.0).fetch_one(&app.pool).await.unwrap();
    assert!(skipped > 1024.0 * 1024.0, "{skipped}");
    let scrape = worker.measures("boxrun_output_skipped_bytes_total", &[], skipped).await;
    assert_eq!(scrape.value("boxrun_output_gaps_total", &[]), Some(gaps));
    worker.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_job_whose_worker_died_is_counted_by_who_takes_it_over(pool: PgPool) {
    let app = App::idle(pool, [Answer::hang()]).await;
    let first = Process::worker(&app).await;
    let run = app.running("sleep 60").await;
    app.hurry(run).await;
    app.wait_for_sent(Sent::Poll, 1).await;
    // Killed as it polls.
    drop(first);
    app.server.script([ends_with("bye\n")]);
    let second = Process::worker(&app).await;
    app.lapse_lease(run).await;
    app.wait_for(run, RunState::Completed).await;
    let scrape = second
        .measures("boxrun_leases_lapsed_total", &[("kind", "poll")], 1.0)
        .await;
    assert_eq!(
        scrape.value("boxrun_dispatch_delay_seconds_count", &[]),
        None,
        "dispatched by nobody here"
    );
    second.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn requests_are_counted_by_template_method_and_status_and_by_nothing_that_a_caller_chooses(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let caller = Caller::of(&app, &web).await;
    let made_up = [
        (Method::GET, "/api/v1/chosen-by-a-caller"),
        (Method::GET, "/chosen-by-a-caller?ticket=chosen-by-a-caller"),
        (Method::from_bytes(b"CHOSENBYACALLER").unwrap(), "/healthz"),
        (Method::GET, "/api/v1/conversations/chosen-by-a-caller/runs"),
        (Method::GET, "/api/v1/runs?state=chosen-by-a-caller"),
    ];
    for (method, path) in made_up {
        caller.asks(method, path).send().await.unwrap();
    }
    for _ in 0..2 {
        caller
            .asks(Method::GET, &caller.run(RunId(Uuid::new_v4())))
            .send()
            .await
            .unwrap();
    }
    let scrape = web.scrape().await;
    let counted = |route: &str, method: &str, status: &str| {
        scrape.value(
            "boxrun_http_requests_total",
            &[("route", route), ("method", method), ("status", status)],
        )
    };
    let run = "/api/v1/conversations/{conversation_id}/runs/{run_id}";
    assert_eq!(counted(run, "GET", "404"), Some(2.0), "{scrape:#?}");
    assert_eq!(counted("unmatched", "GET", "404"), Some(2.0));
    assert_eq!(counted("/healthz", "other", "405"), Some(1.0));
    assert_eq!(counted("/api/v1/runs", "GET", "422"), Some(1.0));
    let durations = scrape.value(
        "boxrun_http_request_duration_seconds_count",
        &[("route", run), ("method", "GET")],
    );
    assert_eq!(durations, Some(2.0));
    for sample in &scrape.samples {
        for value in sample.labels.values() {
            assert!(!value.to_lowercase().contains("chosen"), "{sample:?}");
            assert!(
                Uuid::try_parse(value).is_err() && !value.starts_with("bx_"),
                "{sample:?}"
            );
        }
    }
    web.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn admissions_are_counted_by_what_came_of_them(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let caller = Caller::of(&app, &web).await;
    let first = json!({"command": "one", "idempotency_key": "k1"});
    assert_eq!(caller.asks_for(&first).await.0, 202);
    assert_eq!(caller.asks_for(&first).await.0, 202);
    assert_eq!(
        caller
            .asks_for(&json!({"command": "two", "idempotency_key": "k2"}))
            .await
            .0,
        409
    );
    let scrape = web.scrape().await;
    for (outcome, count) in [("admitted", 1.0), ("repeated", 1.0), ("box_run_in_progress", 1.0)] {
        let counted = scrape.value("boxrun_admissions_total", &[("outcome", outcome)]);
        assert_eq!(counted, Some(count), "{outcome}");
    }
    let asked = [("operation", "get_box"), ("outcome", "ok")];
    assert_eq!(scrape.value("boxrun_provider_requests_total", &asked), Some(2.0));
    web.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_stream_is_open_until_its_reader_goes(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let caller = Caller::of(&app, &web).await;
    let run = app.running("sleep 60").await;
    let asking = caller.asks(Method::GET, &format!("{}/stream", caller.run(run)));
    let mut stream = asking.send().await.unwrap();
    stream.chunk().await.unwrap();
    web.measures("boxrun_streams_open", &[], 1.0).await;
    web.measures("boxrun_stream_events_total", &[("event", "state")], 1.0)
        .await;
    drop(stream);
    web.measures("boxrun_streams_open", &[], 0.0).await;
    web.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn deliveries_of_webhooks_are_counted_by_what_came_of_them(pool: PgPool) {
    let app = App::idle(pool, [started(4242), ends_with("hello\n")]).await;
    let of_app = |subcommand| {
        let mut process = command(&app, subcommand);
        process
            .env("BOXRUN_SECRET_KEYS", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=")
            .env("BOXRUN_WEBHOOK_ALLOW_PRIVATE", "true");
        process
    };
    let worker = Process::start(of_app("worker"), "working").await;
    let web = Process::start(of_app("web"), "listening").await;
    let caller = Caller::of(&app, &web).await;
    let receivers = [Receiver::start().await, Receiver::start().await];
    receivers[1].usually(receiver::Answer::Status(410));
    for (name, receiver) in ["good", "gone"].into_iter().zip(&receivers) {
        let put = caller
            .asks(Method::PUT, &format!("/api/v1/webhooks/{name}"))
            .header("content-type", "application/json")
            .body(json!({ "url": receiver.url() }).to_string());
        assert_eq!(put.send().await.expect("an answer").status(), 201);
    }
    caller.starts("echo hello").await;
    let attempts = "boxrun_webhook_attempts_total";
    worker.measures(attempts, &[("outcome", "delivered")], 1.0).await;
    worker.measures(attempts, &[("outcome", "gone")], 1.0).await;
    worker
        .measures("boxrun_webhook_deliveries_given_up_total", &[], 1.0)
        .await;
    web.measures("boxrun_oldest_due_webhook_delivery_age_seconds", &[], 0.0)
        .await;
    worker.stop().await;
    web.stop().await;
    app.finish().await;
}
