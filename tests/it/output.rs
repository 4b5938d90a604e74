//! Output as it is stored and read: the window, splits, secrets, skips, and logs that begin anew.

use std::collections::BTreeMap;

use boxrun::ids::RunId;
use boxrun::runs::RunState;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, log, offset_of, says};

/// An app whose box has this log, of which it tells a little more with each poll, and then the exit.
async fn telling(pool: PgPool, told: Vec<Vec<u8>>) -> App {
    let app = App::idle(pool, []).await;
    let polls = std::sync::atomic::AtomicUsize::new(0);
    app.server.answer_by(move |request| {
        let poll = polls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let now = &told[poll.min(told.len() - 1)];
        let rest = if poll + 1 < told.len() {
            "ALIVE=1"
        } else {
            "EXIT=0 ALIVE=0"
        };
        let from = offset_of(request).min(now.len());
        let to = now.len().min(from + 256 * 1024);
        log(now.len(), &now[from..to], rest)
    });
    app
}

fn work(app: &mut App, output_max_bytes: i64) {
    app.start_worker_with(move |options| {
        options.jobs.output_max_bytes = output_max_bytes;
        options.jobs.poll_interval = std::time::Duration::from_millis(1);
    });
}

/// The beginnings of `log` after each piece.
fn growing<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut so_far = Vec::new();
    let grown = pieces.into_iter().map(|piece| {
        so_far.extend_from_slice(piece);
        so_far.clone()
    });
    grown.collect()
}

/// Start, end and version of each stored piece.
async fn stored(app: &App, run: RunId) -> Vec<(i64, i64, String)> {
    sqlx::query_as(
        "select start_offset, start_offset + octet_length(text), xmin::text || ctid::text
           from boxrun.run_output where run_id = $1 order by 1",
    )
    .bind(run.0)
    .fetch_all(&app.pool)
    .await
    .expect("a database")
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_secret_split_over_polls_is_in_no_output_and_in_no_table(pool: PgPool) {
    let text =
        "a https://bob:hunter2-pw@host/x b Authorization: Bearer abcdefgh\nc é😀 d\u{0} https://h/?token=xyzxyzxy e";
    let told = growing(text.as_bytes().chunks(3));
    let mut app = telling(pool, told).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 24 * 1024);
    app.wait_for(run, RunState::Completed).await;
    let read = app.output(run, 0).await;
    assert_eq!(
        read.output,
        "a [REDACTED_URL] b Authorization: [REDACTED]\nc é😀 d\u{FFFD} https://h/?[REDACTED] e"
    );
    assert_eq!(read.next_offset, i64::try_from(read.output.len()).unwrap());
    let row: String = sqlx::query_scalar("select to_jsonb(r)::text from boxrun.runs r where id = $1")
        .bind(run.0)
        .fetch_one(&app.pool)
        .await
        .unwrap();
    assert!(!row.contains("hunter2"), "{row}");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_may_become_a_secret_is_not_stored_and_read_again(pool: PgPool) {
    let script = [
        says("PRESENT=1 SIZE=14 DATA=x,https://bob: ALIVE=1"),
        says("PRESENT=1 FROM=2 SIZE=17 DATA=https://bob:pw@ EXIT=0 ALIVE=0").held(),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 24 * 1024);
    app.wait_for_sent(Sent::Poll, 2).await;
    assert_eq!(app.output(run, 0).await.output, "x,");
    assert_eq!(app.run(run).await.log_offset, 2);
    let asked: Vec<_> = app.server.requests().iter().map(offset_of).collect();
    assert_eq!(asked, [0, 2]);
    app.server.release();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "x,[REDACTED_URL]");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_secret_longer_than_what_is_held_is_dropped_and_the_polls_get_on(pool: PgPool) {
    let text = format!("a Authorization: {}\nb", "s".repeat(40_000));
    let told = growing(text.as_bytes().chunks(5_000));
    let mut app = telling(pool, told).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 24 * 1024);
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "a Authorization: [REDACTED]\nb");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn reading_on_yields_every_kept_byte_once_and_characters_whole(pool: PgPool) {
    let text = "€uro ".repeat(1_000);
    let told = growing(text.as_bytes().chunks(700));
    let mut app = telling(pool, told).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 1024);
    app.wait_for(run, RunState::Completed).await;
    let all = app.output(run, 0).await;
    assert!(all.truncated && all.output.len() <= 1024 && all.output.len() > 1020);
    assert!(text.ends_with(&all.output));
    assert_eq!(all.next_offset, i64::try_from(text.len()).unwrap());
    let (base, next) = (all.output_base_offset, all.next_offset);
    assert_eq!(next - base, i64::try_from(all.output.len()).unwrap());
    for offset in base..=next + 1 {
        let read = app.output(run, offset).await;
        let from = text.ceil_char_boundary(usize::try_from(offset).unwrap().min(text.len()));
        assert_eq!(
            (read.output.as_str(), read.truncated),
            (&text[from..], false),
            "from {offset}"
        );
        assert_eq!((read.offset, read.next_offset), (offset, next));
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_poll_adds_one_row_and_touches_no_other_however_large_the_window_is(pool: PgPool) {
    let line = "x".repeat(99) + "\n";
    let told = growing(std::iter::repeat_n(line.as_bytes(), 60));
    let mut app = telling(pool, told).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 64 * 1024 * 1024);
    let mut seen: BTreeMap<i64, (i64, String)> = BTreeMap::new();
    loop {
        let state = app.run(run).await.state;
        for (start, end, version) in stored(&app, run).await {
            let known = seen.entry(start).or_insert((end, version.clone()));
            assert_eq!(*known, (end, version), "a piece that was stored has changed");
        }
        if state.is_terminal() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let rows = stored(&app, run).await;
    assert_eq!(rows.len(), 60);
    assert!(rows.iter().all(|(start, end, _)| end - start == 100));
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn of_a_full_window_only_pieces_that_reach_into_it_are_stored(pool: PgPool) {
    let line = "x".repeat(99) + "\n";
    let told = growing(std::iter::repeat_n(line.as_bytes(), 60));
    let mut app = telling(pool, told).await;
    let run = app.running("sleep 60").await;
    work(&mut app, 1050);
    app.wait_for(run, RunState::Completed).await;
    let rows = stored(&app, run).await;
    assert_eq!(rows.len(), 11);
    assert_eq!(app.output(run, 0).await.output.len(), 1050);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_backlog_is_skipped_to_a_line_near_its_end_and_readers_see_it(pool: PgPool) {
    let mut text = String::new();
    for number in 0..300_000 {
        let line = format!("line {number}\n");
        text.push_str(&line);
    }
    let bytes = i64::try_from(text.len()).unwrap();
    assert!(bytes > 3 * 1024 * 1024);
    let mut app = telling(
        pool,
        vec![b"first\n".to_vec(), ("first\n".to_owned() + &text).into_bytes()],
    )
    .await;
    let run = app.running("sleep 60").await;
    work(&mut app, 64 * 1024 * 1024);
    app.wait_for(run, RunState::Completed).await;
    let read = app.output(run, 6).await;
    assert!(read.truncated);
    assert!(
        read.output.starts_with("line ") && text.ends_with(&read.output),
        "a whole line comes first"
    );
    assert!(read.output.len() > 128 * 1024 && read.output.len() <= 256 * 1024);
    assert_eq!(read.next_offset, bytes + 6);
    assert_eq!(
        read.output_base_offset,
        read.next_offset - i64::try_from(read.output.len()).unwrap()
    );
    let skipped: Option<i64> = sqlx::query_scalar(
        "select sum((detail->>'bytes')::bigint)::bigint from boxrun.run_events where run_id = $1 and event = 'output_skipped'",
    )
    .bind(run.0)
    .fetch_one(&app.pool)
    .await
    .unwrap();
    // What was read before the skip is gone with it.
    assert_eq!(skipped.map(|skipped| skipped + 6), Some(read.output_base_offset));
    assert!(app.count_sent(Sent::Poll) < 6);
    assert_eq!(stored(&app, run).await.len(), 1);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_log_that_shrank_is_read_again_from_its_start_with_a_mark(pool: PgPool) {
    let mut app = telling(
        pool,
        vec![
            b"one two three\n".to_vec(),
            b"four\n".to_vec(),
            b"four\nfive\n".to_vec(),
        ],
    )
    .await;
    let run = app.running("sleep 60").await;
    work(&mut app, 24 * 1024);
    let run_now = app.wait_for(run, RunState::Completed).await;
    assert_eq!((run_now.log_epoch, run_now.log_offset), (1, 10));
    let read = app.output(run, 0).await;
    let mark = "\n[boxrun: the log was cut or replaced here; what follows is read from its start]\n";
    assert_eq!(read.output, format!("one two three\n{mark}four\nfive\n"));
    assert!(app.events(run).await.contains(&"log_restarted".to_owned()));
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_log_offset_falls_only_with_a_new_epoch(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    app.execute("update boxrun.runs set log_offset = 10 where id = $1", run)
        .await;
    for write in [
        "update boxrun.runs set log_offset = 9 where id = $1",
        "update boxrun.runs set log_epoch = -1 where id = $1",
        "update boxrun.runs set log_epoch = 1, last_output_offset = -1 where id = $1",
    ] {
        let refused = app.try_execute(write, run).await.expect_err(write);
        let constraint = refused.as_database_error().and_then(|error| error.constraint());
        assert_eq!(constraint, Some("runs_offsets_never_fall"), "{write}");
    }
    app.execute(
        "update boxrun.runs set log_offset = 0, log_epoch = 1 where id = $1",
        run,
    )
    .await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_last_words_of_a_killed_run_are_masked_and_their_cut_is_marked(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    let whole = app.another_box().await;
    let whole_path = whole.to_string();
    app.server.answer_by(move |request| {
        let size = if request.path.contains(&whole_path) { 13 } else { 99 };
        says(&format!("CANCELLED=1 SIZE={size} DATA=a,https://bob"))
    });
    let cut = app.running("sleep 60").await;
    let whole = app.running_as(app.new_run_on(&whole, "sleep 60")).await;
    for run in [cut, whole] {
        app.cancel(run).await;
    }
    work(&mut app, 24 * 1024);
    for (run, output) in [
        (whole, "a,https://bob"),
        (cut, "a,[REDACTED]\n[boxrun: 86 bytes of output could not be read]\n"),
    ] {
        app.wait_for(run, RunState::Cancelled).await;
        assert_eq!(app.output(run, 0).await.output, output);
    }
    app.finish().await;
}
