//! The window of output that is kept, against a naive reference that sees the whole log at once.

use std::collections::HashMap;

use boxrun::ids::RunId;
use boxrun::runs::{OutputRead, RunState};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{log, offset_of};
use crate::support::scripted_box::{Answer, Request};
use crate::support::wait::wait_until;

const CASES: usize = 16;
/// Small, so that a short log overflows it.
const KEPT_MAX: usize = 50;

/// A log, and its sizes as successive polls find it.
#[derive(Debug, Clone)]
struct Case {
    log: Vec<u8>,
    sizes: Vec<usize>,
}

impl Case {
    /// What a box says to the poll of this number.
    fn answer(&self, poll: usize, request: &Request) -> Answer {
        let size = self.sizes.get(poll).copied().unwrap_or(self.log.len());
        let data = self.log.get(offset_of(request)..size).unwrap_or_default();
        log(
            size,
            data,
            if size == self.log.len() {
                "EXIT=0 ALIVE=0"
            } else {
                "ALIVE=1"
            },
        )
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.log).replace('\0', "\u{FFFD}")
    }

    fn expected(&self, kept_max: usize, offset: usize) -> OutputRead {
        let text = self.text();
        let base = text.ceil_char_boundary(text.len().saturating_sub(kept_max));
        let from = text.ceil_char_boundary(offset.max(base).min(text.len()));
        OutputRead {
            output: text[from..].to_owned(),
            offset: i64::try_from(offset).unwrap(),
            next_offset: i64::try_from(text.len()).unwrap(),
            output_base_offset: i64::try_from(base).unwrap(),
            truncated: offset < base,
        }
    }
}

/// Always the same ones, for each takes its polls of a worker over a database.
fn cases() -> Vec<Case> {
    const PIECES: [&[u8]; 7] = [
        b"a",
        "é".as_bytes(),
        "€".as_bytes(),
        "🦀".as_bytes(),
        b"\0",
        b"\xff",
        b"\xe2\x82",
    ];
    let byte = prop::sample::select(&PIECES[..]);
    let log = prop::collection::vec(byte, 0..80).prop_map(|pieces| pieces.concat());
    let case = (log, prop::collection::vec(0usize..200, 0..5)).prop_map(|(log, mut sizes)| {
        for size in &mut sizes {
            *size = (*size).min(log.len());
        }
        sizes.sort_unstable();
        Case { log, sizes }
    });
    let mut runner = TestRunner::deterministic();
    (0..CASES)
        .map(|_| case.new_tree(&mut runner).unwrap().current())
        .collect()
}

/// An app with a run for each case, nobody working yet.
async fn app_of(pool: PgPool, cases: &[Case]) -> (App, Vec<RunId>) {
    let app = App::idle(pool, []).await;
    let (mut runs, mut by_box) = (Vec::new(), HashMap::new());
    for case in cases {
        let box_id = app.another_box().await;
        by_box.insert(format!("/boxes/{box_id}/commands"), (case.clone(), 0));
        runs.push(app.running_as(app.new_run_on(&box_id, "cat log")).await);
    }
    let by_box = std::sync::Mutex::new(by_box);
    app.server.answer_by(move |request| {
        let mut by_box = by_box.lock().unwrap();
        let (case, polls) = by_box.get_mut(&request.path).expect("a box of a case");
        *polls += 1;
        case.answer(*polls - 1, request)
    });
    (app, runs)
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_newest_part_of_any_log_in_any_pieces_is_kept_and_read_from_any_offset(pool: PgPool) {
    let cases = cases();
    let (mut app, runs) = app_of(pool, &cases).await;
    app.start_worker_with(|options| options.jobs.output_max_bytes = i64::try_from(KEPT_MAX).unwrap());
    for (case, run) in cases.iter().zip(runs) {
        app.wait_for(run, RunState::Completed).await;
        let end = case.text().len();
        for offset in end.saturating_sub(KEPT_MAX + 6)..end + 3 {
            assert_eq!(
                app.output(run, i64::try_from(offset).unwrap()).await,
                case.expected(KEPT_MAX, offset),
                "{case:?} at {offset}"
            );
        }
        assert_eq!(app.output(run, 0).await, case.expected(KEPT_MAX, 0), "{case:?}");
        let kept: i64 = sqlx::query_scalar(
            "select coalesce(sum(octet_length(text)), 0)::bigint from boxrun.run_output where run_id = $1",
        )
        .bind(run.0)
        .fetch_one(&app.pool)
        .await
        .unwrap();
        // The oldest piece goes as a whole, once nothing of it is kept.
        assert!(kept <= i64::try_from(end).unwrap());
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn reading_on_from_next_offset_yields_every_byte_once(pool: PgPool) {
    let cases = cases();
    let (mut app, runs) = app_of(pool, &cases).await;
    app.start_worker();
    for (case, run) in cases.iter().zip(runs) {
        let (mut text, mut offset) = (String::new(), 0);
        wait_until(
            "the run is completed and read",
            async || {
                let ended = app.run(run).await.state.is_terminal();
                let read = app.output(run, offset).await;
                assert!(!read.truncated);
                text += &read.output;
                offset = read.next_offset;
                ended
            },
            |ended| *ended,
        )
        .await;
        assert_eq!(text, case.text(), "{case:?}");
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_default_window_is_24_kib_cut_at_a_character(pool: PgPool) {
    // 3 bytes each: 24 KiB is no multiple of it.
    let case = Case {
        log: "€".repeat(10_000).into_bytes(),
        sizes: vec![1000, 24 * 1024, 24 * 1024 + 1],
    };
    let (mut app, runs) = app_of(pool, std::slice::from_ref(&case)).await;
    app.start_worker();
    app.wait_for(runs[0], RunState::Completed).await;
    let read = app.output(runs[0], 0).await;
    assert_eq!(read, case.expected(24 * 1024, 0));
    assert_eq!(read.output.len(), 24 * 1024);
    app.finish().await;
}
