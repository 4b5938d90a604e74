//! Each step of each kind of job meets each fault: the same end, and one start.
//!
//! The steps are not written down here: they are what a worker was seen to do in a life without a fault, so a step that
//! is added to the product is looked at too. A step is a statement to the database or a request to the box.

mod cell;
mod life;
mod requests;
mod statements;
mod tap;

use std::sync::atomic::{AtomicUsize, Ordering};

use boxrun::postgres::Durability;
use boxrun::schema;
use futures::StreamExt as _;
use sqlx::postgres::PgPoolOptions;

use super::setting::{Setting, in_setting};
use cell::Cell;
use life::Life;
use tap::{Fault, Step};

/// Cells at a time; most of their time they wait for a lease to lapse.
const AT_A_TIME: usize = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_over_soon_ends_the_same_whatever_step_meets_a_fault() {
    matrix(Life::Short, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_polled_ends_the_same_whatever_step_meets_a_fault() {
    matrix(Life::Long, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_cancelled_ends_the_same_whatever_step_meets_a_fault() {
    matrix(Life::Cancelled, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_past_its_deadline_ends_the_same_whatever_step_meets_a_fault() {
    matrix(Life::PastDeadline, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_asked_for_ends_the_same_whatever_step_meets_a_fault() {
    matrix(Life::DispatchUnanswered, 5).await;
}

/// Records the life's steps, at least so many, and has each of them meet each fault.
async fn matrix(life: Life, steps_min: usize) {
    in_setting(Durability::Forgotten, async |setting| {
        let setting = &*setting;
        prepare_template(setting).await;
        let numbers = AtomicUsize::new(0);
        let number = || numbers.fetch_add(1, Ordering::Relaxed);
        let (steps, ended) = Cell::new(setting, number(), life, None).await.record().await;
        assert_eq!(
            life.faults(&ended, None),
            Vec::<String>::new(),
            "without a fault: {ended:#?}"
        );
        let steps: Vec<Step> = steps.into_iter().filter(|step| life.is_about(step)).collect();
        assert!(steps.len() >= steps_min, "{steps:#?}");

        let cells = steps
            .iter()
            .flat_map(|step| faults_of(step).map(move |fault| (step, fault)));
        let outcomes = cells.map(|(step, fault)| {
            let number = number();
            async move {
                let cell = Cell::new(setting, number, life, Some((step.clone(), fault))).await;
                let ended = cell.strike(fault).await;
                let faults = life.faults(&ended, Some((step, fault)));
                (!faults.is_empty()).then(|| format!("cell_{number}, {fault:?} {step}: {faults:?}: {ended:#?}"))
            }
        });
        let outcomes: Vec<Option<String>> = futures::stream::iter(outcomes)
            .buffer_unordered(AT_A_TIME)
            .collect()
            .await;
        eprintln!("{life:?}: {} steps, {} cells", steps.len(), outcomes.len());
        let wrong: Vec<String> = outcomes.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    })
    .await;
}

/// A statement that is done twice is one whose answer was lost; nothing comes before a claim.
fn faults_of(step: &Step) -> impl Iterator<Item = Fault> + use<> {
    let (is_request, is_claim) = (step.is_request, step.what == "claim");
    Fault::ALL.into_iter().filter(move |fault| match fault {
        Fault::CrashBefore | Fault::RequestLost => !is_claim,
        Fault::Twice => is_request,
        Fault::CrashAfter | Fault::AnswerLost | Fault::LeaseLost => true,
    })
}

async fn prepare_template(setting: &Setting) {
    sqlx::raw_sql("create database matrix")
        .execute(&setting.pool)
        .await
        .expect("a database");
    let url = setting.database_url();
    let url = format!("{}/matrix", url.rsplit_once('/').expect("a database in the address").0);
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect(&url)
        .await
        .expect("a connection");
    schema::migrate(&pool).await.expect("a schema");
    pool.close().await;
}
