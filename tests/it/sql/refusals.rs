//! Each refusal: its message is the code, its SQLSTATE is its own, and it says what was wrong and what to do.

use std::collections::BTreeMap;

use sqlx::PgPool;

use super::{BOX, CONVERSATION, ELSEWHERE, OTHER_BOX, app_with_box, attach, refusal, run, run_id, start, value};

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn each_refusal_has_its_code_its_sqlstate_and_says_what_was_wrong(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    run(&mut conn, &attach(ELSEWHERE, OTHER_BOX, "u2")).await;
    let active = run_id(&mut conn, &start("make", "k", "")).await;
    let with = |call: String, from: &str, to: &str| format!("select * from {}", call.replace(from, to));
    let of_run = |function: &str, more: &str| {
        format!("select * from boxrun.{function}(conversation_id => '{ELSEWHERE}', run_id => '{active}' {more})")
    };
    let principal = r#", principal => '{"type": "user", "id": "u1"}'"#;
    let detach = attach(CONVERSATION, BOX, "u1").replace("attach_box", "detach_box");
    let list = |filter: &str| format!("select * from boxrun.list_runs(conversation_id => '{CONVERSATION}', {filter})");
    let another = start("make", "other", "");
    for (sql, sqlstate, code, detail) in [
        (with(start("  ", "x", ""), "", ""), "BX001", "invalid_command", "blank"),
        (
            with(another.clone(), "'make'", "null"),
            "BX001",
            "invalid_command",
            "none",
        ),
        (
            with(start("make", "", ""), "", ""),
            "BX002",
            "invalid_idempotency_key",
            "empty",
        ),
        (
            with(start("make", "x", ", max_duration_seconds => 1801"), "", ""),
            "BX003",
            "invalid_max_duration",
            "1 to 1800 seconds, 1801",
        ),
        (with(another.clone(), BOX, "bx_l"), "BX004", "invalid_box_id", "'bx_l'"),
        (
            attach(CONVERSATION, "nonsense", "u1"),
            "BX004",
            "invalid_box_id",
            "nonsense",
        ),
        (detach.replace(BOX, "nonsense"), "BX004", "invalid_box_id", "nonsense"),
        (list("box_id => 'nonsense'"), "BX004", "invalid_box_id", "nonsense"),
        (
            format!("select * from boxrun.read_output('{CONVERSATION}', '{active}', -1)"),
            "BX005",
            "invalid_output_offset",
            "from_offset",
        ),
        (
            with(start("make", "x", ", cwd => ''"), "", ""),
            "BX006",
            "invalid_request",
            "cwd",
        ),
        (
            with(start("make", "x", ", env => '[]'"), "", ""),
            "BX006",
            "invalid_request",
            "env",
        ),
        (
            with(start("make", "x", r#", env => '{"A": 1}'"#), "", ""),
            "BX006",
            "invalid_request",
            "the value of A",
        ),
        (
            with(
                another.clone(),
                r#"{"type": "user", "id": "u1"}"#,
                r#"{"type": "user"}"#,
            ),
            "BX006",
            "invalid_request",
            "principal",
        ),
        (
            with(another.clone(), r#"'{"type": "user", "id": "u1"}'"#, "null"),
            "BX006",
            "invalid_request",
            "principal",
        ),
        (
            with(another.clone(), &format!("'{CONVERSATION}'"), "null"),
            "BX006",
            "invalid_request",
            "conversation_id",
        ),
        (list("state => 'asleep'"), "BX006", "invalid_request", "asleep"),
        (list(r#""limit" => 0"#), "BX006", "invalid_request", "limit"),
        (list(r#""limit" => 1001"#), "BX006", "invalid_request", "limit"),
        (
            list(&format!("after => '{ELSEWHERE}'")),
            "BX006",
            "invalid_request",
            "after",
        ),
        (
            attach(CONVERSATION, BOX, "u2"),
            "BX101",
            "conversation_not_found",
            "conversation",
        ),
        (attach(CONVERSATION, OTHER_BOX, "u1"), "BX102", "box_not_found", "box"),
        (detach.replace(CONVERSATION, ELSEWHERE), "BX102", "box_not_found", "box"),
        (detach.replace("u1", "u2"), "BX102", "box_not_found", "box"),
        (
            with(another.clone(), BOX, OTHER_BOX),
            "BX103",
            "box_not_owned",
            OTHER_BOX,
        ),
        (
            with(another.clone(), BOX, "bx_33333333"),
            "BX103",
            "box_not_owned",
            "bx_33333333",
        ),
        (
            with(another.clone(), CONVERSATION, ELSEWHERE),
            "BX103",
            "box_not_owned",
            BOX,
        ),
        (of_run("get_run", ""), "BX104", "box_run_not_found", "run"),
        (
            of_run("read_output", ", from_offset => 0"),
            "BX104",
            "box_run_not_found",
            "run",
        ),
        (of_run("cancel_run", principal), "BX104", "box_run_not_found", "run"),
        (
            format!("select * from boxrun.get_run('{CONVERSATION}', null)"),
            "BX104",
            "box_run_not_found",
            "run",
        ),
        (with(another, "", ""), "BX201", "box_run_in_progress", &active),
        (detach, "BX201", "box_run_in_progress", &active),
        (
            with(start("make all", "k", ""), "", ""),
            "BX202",
            "box_run_idempotency_conflict",
            &active,
        ),
        (
            attach("33333333-3333-4333-8333-333333333333", BOX, "u1"),
            "BX203",
            "box_already_attached",
            CONVERSATION,
        ),
    ] {
        let refused = refusal(&mut conn, &sql).await;
        assert_eq!(
            (&*refused.sqlstate, &*refused.message),
            (sqlstate, code),
            "{sql}\n{refused:?}"
        );
        assert!(refused.detail.contains(detail), "{sql}\n{refused:?}");
        assert!(!refused.hint.is_empty(), "{sql}\n{refused:?}");
    }
    let runs: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(runs, 1, "a refusal leaves nothing behind");
}

/// `busy` can't be reached at will, so the table itself is read.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_manual_lists_each_code_with_its_sqlstate(pool: PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    let source: String = value(
        &mut conn,
        "select prosrc from pg_proc where oid = 'boxrun.refuse'::regproc",
    )
    .await;
    let when = regex::Regex::new(r"when '(\w+)'\s+then '(\w+)'").unwrap();
    let raised: BTreeMap<_, _> = when
        .captures_iter(&source)
        .map(|pair| pair.extract().1.into())
        .collect();
    let line = regex::Regex::new(r"(?m)^\| `(BX\w{3})` \| `(\w+)` \|").unwrap();
    let manual = include_str!("../../../docs/sql.md");
    let listed: BTreeMap<_, _> = line
        .captures_iter(manual)
        .map(|pair| pair.extract().1)
        .map(|[sqlstate, code]| (code, sqlstate))
        .collect();
    assert!(!listed.is_empty());
    assert_eq!(listed, raised);
    let sqlstates: std::collections::BTreeSet<_> = raised.values().collect();
    assert_eq!(sqlstates.len(), raised.len(), "each has its own");
}
