//! Alive and ready: what the private port answers as a process's life and its database go on.

use std::process::Stdio;
use std::time::{Duration, Instant};

use boxrun::queue::operator;
use boxrun::schema;
use rustix::process::Signal;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::net::TcpListener;

use super::process::{Process, command};
use crate::support::app::App;
use crate::support::box_says::{Sent, started};
use crate::support::wait::wait_until;

/// Whoever probes gives up after a few seconds; far below the 15 s that a statement may take.
const FEW_SECONDS: Duration = Duration::from_secs(8);

async fn is_ready(process: &Process) {
    assert_eq!(process.readiness().await, (200, "ready".to_owned()));
}

async fn is_unready(process: &Process, why: &str) {
    let look = async || process.readiness().await;
    let seen = wait_until(&format!("it is {why}"), look, |(_, word)| word == why).await;
    assert_eq!(seen.0, 503);
    assert_eq!(process.ask("/healthz").await, (200, "ok\n".to_owned()));
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_that_is_told_to_end_is_alive_and_not_ready_until_it_has_finished(pool: PgPool) {
    let app = App::idle(pool, [started(4242).held()]).await;
    let mut worker = Process::worker(&app).await;
    is_ready(&worker).await;
    app.admit("echo one").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    worker.signal(Signal::TERM);
    is_unready(&worker, "stopping").await;
    app.server.release();
    assert_eq!(worker.ended().await.code(), Some(0));
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_drained_worker_is_not_ready_while_it_finishes_what_it_has(pool: PgPool) {
    let app = App::idle(pool, [started(4242).held()]).await;
    let mut worker = Process::worker(&app).await;
    app.admit("echo one").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    let id: String = sqlx::query_scalar("select id from boxrun.workers")
        .fetch_one(&app.pool)
        .await
        .expect("one worker");
    assert!(operator::drain(&app.pool, &id).await.expect("a database"));
    is_unready(&worker, "draining").await;
    let scrape = worker.scrape().await;
    assert_eq!(scrape.value("boxrun_workers_live", &[]), Some(0.0), "it claims no more");
    app.server.release();
    assert_eq!(worker.ended().await.code(), Some(0));
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn readiness_names_what_is_wrong_with_the_database(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let processes = [Process::worker(&app).await, Process::web(&app).await];
    for process in &processes {
        is_ready(process).await;
    }
    let own = app.server.client().origin();
    schema::set_provider(&app.pool, "https://other.example").await.unwrap();
    for process in &processes {
        is_unready(process, "provider_mismatch").await;
    }
    schema::set_provider(&app.pool, &own).await.unwrap();
    for process in &processes {
        is_ready(process).await;
    }
    let older =
        "delete from boxrun._sqlx_migrations where version = (select max(version) from boxrun._sqlx_migrations)";
    sqlx::query(older).execute(&app.pool).await.unwrap();
    for process in processes {
        is_unready(&process, "schema_outdated").await;
        process.stop().await;
    }
    app.finish().await;
}

/// The database takes the question and never answers it: somebody holds what is asked for.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_database_that_is_silent_makes_a_process_unready_within_seconds_and_a_scrape_still_answers(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let mut holder = app.pool.begin().await.unwrap();
    sqlx::query("lock table boxrun._sqlx_migrations, boxrun.jobs in access exclusive mode")
        .execute(&mut *holder)
        .await
        .unwrap();
    let asked = Instant::now();
    assert_eq!(web.readiness().await, (503, "database_out_of_reach".to_owned()));
    assert!(asked.elapsed() < FEW_SECONDS, "it took {:?}", asked.elapsed());
    let asked = Instant::now();
    let scrape = web.scrape().await;
    assert!(asked.elapsed() < FEW_SECONDS, "it took {:?}", asked.elapsed());
    assert_eq!(scrape.value("boxrun_database_up", &[]), Some(0.0));
    assert_eq!(
        scrape.value("boxrun_database_pool_connections_max", &[("pool", "web")]),
        Some(5.0)
    );
    assert_eq!(scrape.value("boxrun_streams_open", &[]), Some(0.0));
    assert_eq!(
        scrape.value("boxrun_workers_live", &[]),
        None,
        "nothing is said that is not known"
    );
    assert_eq!(web.ask("/healthz").await.0, 200);
    drop(holder);
    wait_until(
        "it is ready again",
        async || web.readiness().await,
        |seen| seen.0 == 200,
    )
    .await;
    web.measures("boxrun_database_up", &[], 1.0).await;
    web.stop().await;
    app.finish().await;
}

/// The database lets nobody in.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn processes_outlive_a_database_that_is_down_and_say_so(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let processes = [Process::worker(&app).await, Process::web(&app).await];
    let elsewhere = (*app.pool.connect_options()).clone().database("postgres");
    let mut operator = PgConnection::connect_with(&elsewhere).await.unwrap();
    let name = app.pool.connect_options().get_database().unwrap().to_owned();
    let open = async |operator: &mut PgConnection, open: bool| {
        let sql: String = sqlx::query_scalar("select format('alter database %I with allow_connections %s', $1, $2)")
            .bind(&name)
            .bind(open.to_string())
            .fetch_one(&mut *operator)
            .await
            .unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(operator).await.unwrap();
    };
    open(&mut operator, false).await;
    sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1")
        .bind(&name)
        .execute(&mut operator)
        .await
        .unwrap();
    for process in &processes {
        is_unready(process, "database_out_of_reach").await;
        let scrape = process.measures("boxrun_database_up", &[], 0.0).await;
        assert_eq!(
            scrape.value("boxrun_build_info", &[("version", env!("CARGO_PKG_VERSION"))]),
            Some(1.0)
        );
    }
    open(&mut operator, true).await;
    for process in processes {
        wait_until(
            "it is ready again",
            async || process.readiness().await,
            |seen| seen.0 == 200,
        )
        .await;
        process.measures("boxrun_database_up", &[], 1.0).await;
        process.stop().await;
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_private_port_that_is_taken_is_said_at_the_start(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for subcommand in ["worker", "web"] {
        let mut process = command(&app, subcommand);
        process.env("BOXRUN_OPS_LISTEN", &address).stderr(Stdio::piped());
        let output = process.output().await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{said}");
        for expected in ["BOXRUN_OPS_LISTEN", &address, "in use"] {
            assert!(said.contains(expected), "{subcommand}: {said}");
        }
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn there_is_nothing_else_on_the_private_port(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    for path in ["/", "/openapi.json", "/api/v1/me", "/metrics/", "/api/v1/runs?ticket=x"] {
        assert_eq!(web.ask(path).await.0, 404, "{path}");
    }
    web.stop().await;
    app.finish().await;
}

#[cfg(target_os = "linux")]
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn without_the_setting_a_worker_listens_nowhere(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let mut worker = command(&app, "worker");
    let mut worker = worker
        .env_remove("BOXRUN_OPS_LISTEN")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let count = async || {
        let workers = sqlx::query_scalar::<_, i64>("select count(*) from boxrun.workers").fetch_one(&app.pool);
        workers.await.unwrap()
    };
    wait_until("the worker works", count, |count| *count == 1).await;
    let listening: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .flat_map(|table| {
            std::fs::read_to_string(table)
                .unwrap_or_default()
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        // The state LISTEN, and the number of the socket.
        .filter(|columns| columns.get(3).is_some_and(|state| state == "0A"))
        .map(|columns| format!("socket:[{}]", columns[9]))
        .collect();
    assert!(!listening.is_empty(), "the scripted box of this test listens");
    for descriptor in std::fs::read_dir(format!("/proc/{}/fd", worker.id().unwrap())).unwrap() {
        // One that was closed meanwhile.
        let Ok(target) = std::fs::read_link(descriptor.unwrap().path()) else {
            continue;
        };
        assert!(
            !listening.contains(&target.to_string_lossy().into_owned()),
            "{target:?}"
        );
    }
    worker.kill().await.unwrap();
    app.finish().await;
}
