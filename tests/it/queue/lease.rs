//! Who holds a job's lease, and what is refused to who held it.

use std::time::Duration;

use boxrun::queue::{
    ClaimedJob, Claimer, ClaimerOptions, Finish, Interrupt, JobKind, Lanes, NextJob, Remember, finish, give_back, hold,
};
use chrono::TimeDelta;
use sqlx::PgPool;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::app::App;

/// A claimer without a worker: the test gets the jobs.
struct Taker {
    claimer: Claimer,
    lanes: [UnboundedReceiver<ClaimedJob>; 4],
    claiming: JoinHandle<()>,
    stop: CancellationToken,
}

impl Taker {
    fn start(app: &App, worker: &str, lease: Duration) -> Self {
        let options = ClaimerOptions {
            worker: worker.to_owned(),
            lease,
            concurrency: [1; 4],
        };
        let claimer = Claimer::new(app.pool.clone(), options);
        let (lanes, receivers) = Lanes::new();
        let stop = CancellationToken::new();
        Self {
            claiming: tokio::spawn(claimer.clone().run(lanes, stop.clone())),
            claimer,
            lanes: receivers,
            stop,
        }
    }

    async fn take(&mut self, kind: JobKind) -> ClaimedJob {
        self.lanes[kind.index()].recv().await.expect("a claimer that runs")
    }

    async fn stop(self) {
        self.stop.cancel();
        self.claiming.await.expect("a claimer that does not panic");
    }
}

const LONG: Duration = Duration::from_secs(60);

fn later(kind: JobKind) -> Finish {
    Finish::Next(NextJob {
        kind,
        delay: LONG,
        not_after: None,
        remember: Remember::Answer,
    })
}

/// A job that one worker held, and another holds now.
async fn reclaimed(app: &App) -> (ClaimedJob, Taker, ClaimedJob) {
    let run = app.admit("echo one").await;
    let mut slow = Taker::start(app, "slow", LONG);
    let lost = slow.take(JobKind::Start).await;
    slow.stop().await;
    let mut quick = Taker::start(app, "quick", LONG);
    app.lapse_lease(run).await;
    quick.claimer.due_in(Duration::ZERO);
    let held = quick.take(JobKind::Start).await;
    assert_eq!(lost.lease.run_id, held.lease.run_id);
    (lost, quick, held)
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_finish_is_fenced_after_reclaim(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let (lost, quick, held) = reclaimed(&app).await;
    let run = lost.lease.run_id;
    let before = app.job(run).await;
    assert_eq!(before.as_ref().and_then(|job| job.leased_by.as_deref()), Some("quick"));
    let mut conn = app.pool.acquire().await.unwrap();
    for outcome in [later(JobKind::Poll), Finish::Done] {
        let finished = finish(&mut conn, lost.lease, &outcome).await.unwrap();
        assert!(!finished, "{outcome:?} with a lease that is lost");
        assert_eq!(app.job(run).await, before, "{outcome:?}");
    }
    assert!(!hold(&mut conn, lost.lease).await.unwrap());
    give_back(&mut *conn, lost.lease).await.unwrap();
    assert_eq!(app.job(run).await, before, "given back with a lease that is lost");

    assert!(hold(&mut conn, held.lease).await.unwrap());
    assert!(finish(&mut conn, held.lease, &later(JobKind::Poll)).await.unwrap());
    let after = app.job(run).await.expect("a job");
    assert_eq!((after.kind, after.lease, after.leased_by), (JobKind::Poll, None, None));
    assert!(
        !finish(&mut conn, held.lease, &Finish::Done).await.unwrap(),
        "a second finish"
    );
    drop(conn);
    quick.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_lapsed_lease_is_claimed_again_under_another(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let (lost, quick, held) = reclaimed(&app).await;
    assert_ne!(lost.lease.token, held.lease.token);
    assert_eq!(
        app.job(held.lease.run_id).await.and_then(|job| job.lease),
        Some(held.lease.token)
    );
    quick.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn renewals_keep_a_lease_and_tell_who_lost_it(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    let mut first = Taker::start(&app, "first", Duration::from_secs(3));
    let job = first.take(JobKind::Start).await;
    let claimed_until = app.job(run).await.and_then(|job| job.lease_until);
    let renewing = tokio::spawn(first.claimer.clone().renew());
    let renewed = app
        .wait_until(run, "the lease is renewed twice", |seen| {
            let until = seen.job.as_ref().and_then(|job| job.lease_until);
            until > claimed_until.map(|until| until + TimeDelta::seconds(1))
        })
        .await;
    assert_eq!(renewed.job.and_then(|job| job.lease), Some(job.lease.token));

    // Somebody else has it now, as after a pause that was longer than the lease.
    app.execute(
        "update boxrun.jobs set lease = gen_random_uuid() where run_id = $1",
        run,
    )
    .await;
    assert_eq!(job.interrupted().await, Interrupt::LeaseLost);
    renewing.abort();
    first.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_of_a_leased_job_turns_into_a_stop_as_it_finishes(pool: PgPool) {
    let app = App::idle(pool, []).await;
    for outcome in [Some(later(JobKind::Poll)), None] {
        let box_id = app.another_box().await;
        let run = app.running_as(app.new_run_on(&box_id, "sleep 60")).await;
        let mut taker = Taker::start(&app, "one", LONG);
        let job = taker.take(JobKind::Poll).await;
        taker.stop().await;
        app.cancel(run).await;
        let marked = app.job(run).await.expect("a job");
        assert_eq!(
            (marked.kind, marked.urgent, marked.lease),
            (JobKind::Poll, true, Some(job.lease.token))
        );
        let mut conn = app.pool.acquire().await.unwrap();
        match &outcome {
            Some(outcome) => assert!(finish(&mut conn, job.lease, outcome).await.unwrap()),
            None => give_back(&mut *conn, job.lease).await.unwrap(),
        }
        drop(conn);
        let seen = app.snapshot(run).await;
        let stop = seen.job.expect("a job");
        assert_eq!((stop.kind, stop.urgent, stop.lease), (JobKind::Stop, false, None));
        assert!(stop.due_at <= seen.run.read_at + TimeDelta::milliseconds(1), "{stop:?}");
        app.execute("delete from boxrun.jobs where run_id = $1", run).await;
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_of_a_job_that_nobody_holds_is_a_stop_due_now(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let waiting = app.running("sleep 60").await;
    app.execute(
        "update boxrun.jobs set due_at = clock_timestamp() + interval '1 minute' where run_id = $1",
        waiting,
    )
    .await;
    // A dead worker's job counts as nobody's.
    let abandoned = app
        .running_as(app.new_run_on(&app.another_box().await, "sleep 60"))
        .await;
    app.execute(
        "update boxrun.jobs set lease = gen_random_uuid(), leased_by = 'dead', lease_until = clock_timestamp()
          where run_id = $1",
        abandoned,
    )
    .await;
    // Also one that has no job at all.
    let stranded = app
        .running_as(app.new_run_on(&app.another_box().await, "sleep 60"))
        .await;
    app.execute("delete from boxrun.jobs where run_id = $1", stranded).await;
    for run in [waiting, abandoned, stranded] {
        app.cancel(run).await;
        let job = app.job(run).await.expect("a job");
        assert_eq!((job.kind, job.urgent, job.lease), (JobKind::Stop, false, None));
        let now = app.run(run).await.read_at;
        assert!(job.due_at <= now, "{job:?} at {now}");
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_job_is_due_at_its_runs_deadline_at_the_latest(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    let mut taker = Taker::start(&app, "one", LONG);
    let job = taker.take(JobKind::Start).await;
    taker.stop().await;
    let deadline = app.run(run).await.read_at + TimeDelta::seconds(7);
    let next = NextJob {
        kind: JobKind::Start,
        delay: LONG,
        not_after: Some(deadline),
        remember: Remember::Unchanged,
    };
    let mut conn = app.pool.acquire().await.unwrap();
    assert!(finish(&mut conn, job.lease, &Finish::Next(next)).await.unwrap());
    drop(conn);
    assert_eq!(app.job(run).await.map(|job| job.due_at), Some(deadline));
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn failures_count_until_a_usable_answer_or_another_kind(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    let failure = Remember::Failure {
        code: "box_unreachable",
        text: "no answer".to_owned(),
    };
    let mut taker = Taker::start(&app, "one", LONG);
    for (kind, remember, next_kind, attempts, code) in [
        (
            JobKind::Poll,
            failure.clone(),
            JobKind::Poll,
            1,
            Some("box_unreachable"),
        ),
        (
            JobKind::Poll,
            failure.clone(),
            JobKind::Poll,
            2,
            Some("box_unreachable"),
        ),
        (
            JobKind::Poll,
            Remember::Unchanged,
            JobKind::Poll,
            2,
            Some("box_unreachable"),
        ),
        (JobKind::Poll, Remember::Answer, JobKind::Poll, 0, None),
        (
            JobKind::Poll,
            failure.clone(),
            JobKind::Poll,
            1,
            Some("box_unreachable"),
        ),
        (
            JobKind::Poll,
            Remember::Unchanged,
            JobKind::Stop,
            0,
            Some("box_unreachable"),
        ),
    ] {
        taker.claimer.due_in(Duration::ZERO);
        let job = taker.take(kind).await;
        let next = NextJob {
            kind: next_kind,
            delay: Duration::ZERO,
            not_after: None,
            remember: remember.clone(),
        };
        let mut conn = app.pool.acquire().await.unwrap();
        assert!(finish(&mut conn, job.lease, &Finish::Next(next)).await.unwrap());
        // The claimer may be quicker than this look; it changes neither.
        let job = app.job(run).await.expect("a job");
        assert_eq!(
            (job.attempts, job.last_error_code.as_deref()),
            (attempts, code),
            "{remember:?}"
        );
    }
    taker.stop().await;
    app.finish().await;
}
