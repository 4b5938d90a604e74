//! Who may do what: the web app calls seven functions and nothing else, and nobody else calls them.

use sqlx::{PgConnection, PgPool};

use super::{BOX, CONVERSATION, app, app_with_box, attach, refusal, row, run, run_id, start, value};

const FOR_CALLERS: [&str; 7] = [
    "attach_box",
    "cancel_run",
    "detach_box",
    "get_run",
    "list_runs",
    "read_output",
    "start_run",
];

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_app_reads_and_writes_no_table(pool: PgPool) {
    let mut conn = app(&pool).await;
    let relations: Vec<(String, bool, Option<String>)> = sqlx::query_as(
        "select c.relname::text, c.relkind = 'r',
                (select quote_ident(a.attname) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
                    and a.attidentity = '' and a.attgenerated = '' and not a.attisdropped order by a.attnum limit 1)
           from pg_class c where c.relnamespace = 'boxrun'::regnamespace and c.relkind in ('r', 'v', 'm', 'p', 'S')",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert!(relations.iter().any(|(name, ..)| name == "runs"), "{relations:?}");
    for (name, is_table, column) in relations {
        let none = format!(
            "select not (has_table_privilege('boxrun_app', 'boxrun.{name}', 'select, insert, update, delete, truncate, references, trigger')
                 or has_any_column_privilege('boxrun_app', 'boxrun.{name}', 'select, insert, update, references'))"
        );
        if is_table {
            let column = column.expect("a column");
            for sql in [
                format!("select from boxrun.{name}"),
                format!("insert into boxrun.{name} default values"),
                format!("update boxrun.{name} set {column} = null"),
                format!("delete from boxrun.{name}"),
                format!("truncate boxrun.{name}"),
            ] {
                assert_eq!(refusal(&mut conn, &sql).await.sqlstate, "42501", "{sql}");
            }
            assert!(value::<bool>(&mut conn, &none).await, "{name}");
        } else {
            let sql = format!("select from boxrun.{name}");
            assert_eq!(refusal(&mut conn, &sql).await.sqlstate, "42501", "{sql}");
        }
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_app_may_call_the_functions_for_callers_and_everybody_else_none(pool: PgPool) {
    app(&pool).await;
    let mut conn = pool.acquire().await.unwrap();
    let callable = |role: &str| {
        format!(
            "select coalesce(array_agg(p.proname::text order by p.proname), '{{}}') from pg_proc p
              where p.pronamespace = 'boxrun'::regnamespace and has_function_privilege('{role}', p.oid, 'execute')"
        )
    };
    assert_eq!(
        value::<Vec<String>>(&mut conn, &callable("boxrun_app")).await,
        FOR_CALLERS
    );
    assert_eq!(value::<Vec<String>>(&mut conn, &callable("public")).await, [""; 0]);
    let workers = value::<Vec<String>>(&mut conn, &callable("boxrun_worker")).await;
    for not_for_workers in ["start_run", "attach_box", "detach_box", "cancel_run"] {
        assert!(!workers.iter().any(|name| name == not_for_workers), "{not_for_workers}");
    }
    let settings = "select has_table_privilege('boxrun_worker', 'boxrun.settings', 'insert')
                and has_table_privilege('boxrun_worker', 'boxrun.settings', 'update')";
    assert!(
        value::<bool>(&mut conn, settings).await,
        "a worker writes its limit down"
    );
    // Without a role of ours the schema itself is closed.
    run(&mut conn, "set role pg_monitor").await;
    let refused = refusal(&mut conn, &attach(CONVERSATION, BOX, "u1")).await;
    assert_eq!(refused.sqlstate, "42501");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn all_functions_work_for_the_app(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let id = run_id(&mut conn, &start("make", "k", "")).await;
    call_the_rest(&mut conn, &id).await;
}

async fn call_the_rest(conn: &mut PgConnection, id: &str) {
    let of_run = format!("conversation_id => '{CONVERSATION}', run_id => '{id}'");
    let principal = r#"principal => '{"type": "user", "id": "u1"}'"#;
    for call in [
        format!("boxrun.get_run({of_run})"),
        format!("boxrun.list_runs(conversation_id => '{CONVERSATION}')"),
        format!("boxrun.read_output({of_run}, from_offset => 0)"),
        format!("boxrun.cancel_run({of_run}, {principal})"),
    ] {
        row(conn, &call).await;
    }
    let detach = attach(CONVERSATION, BOX, "u1").replace("attach_box", "detach_box");
    run(conn, &detach).await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn every_function_has_its_search_path_pinned(pool: PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    let loose = "select coalesce(array_agg(p.proname::text order by p.proname), '{}') from pg_proc p
         where p.pronamespace = 'boxrun'::regnamespace
           and not coalesce('search_path=pg_catalog, pg_temp' = any(p.proconfig), false)";
    // It calls nothing and reads nothing.
    assert_eq!(value::<Vec<String>>(&mut conn, loose).await, ["is_terminal"]);
    let definers = "select array_agg(p.proname::text order by p.proname) from pg_proc p
         where p.pronamespace = 'boxrun'::regnamespace and p.prosecdef";
    // Besides what callers call, the triggers that erase secrets and tell webhooks, whoever ends the run.
    let mut expected = FOR_CALLERS.to_vec();
    expected.extend(["erase_run_secrets", "enqueue_webhook_deliveries"]);
    expected.sort_unstable();
    assert_eq!(value::<Vec<String>>(&mut conn, definers).await, expected);
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_a_caller_puts_into_the_search_path_is_not_used(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let mut owner = pool.acquire().await.unwrap();
    run(
        &mut owner,
        "create schema lure;
         grant all on schema lure to boxrun_app;
         do $$ begin execute format('grant temporary on database %I to boxrun_app', current_database()); end $$",
    )
    .await;
    // Whatever is called or read unqualified is one of these, and none of them may be.
    run(
        &mut conn,
        r"create function lure.sprung() returns text language plpgsql as
              $$ begin raise exception 'the lure was called by %', current_user; end $$;
          create function lure.clock_timestamp() returns timestamptz language sql as $$ select lure.sprung()::timestamptz $$;
          create function lure.octet_length(text) returns integer language sql as $$ select lure.sprung()::integer $$;
          create function lure.jsonb_typeof(jsonb) returns text language sql as $$ select lure.sprung() $$;
          create function lure.format(text, variadic text[]) returns text language sql as $$ select lure.sprung() $$;
          create function lure.regexp_replace(text, text, text, text) returns text language sql as $$ select lure.sprung() $$;
          create function lure.equal(text, text) returns boolean language sql as $$ select lure.sprung()::boolean $$;
          create operator lure.= (leftarg = text, rightarg = text, function = lure.equal);
          create table lure.runs (id uuid, conversation_id uuid);
          create temporary table runs (id uuid, conversation_id uuid);
          create temporary table settings (max_duration_seconds integer);
          insert into settings values (1);
          create temporary table boxes (id text, conversation_id uuid);
          set search_path = lure, pg_temp, pg_catalog, boxrun;
          set standard_conforming_strings = off;",
    )
    .await;
    let call = start(
        "git clone https://bob:pw@git.example/x",
        "k",
        ", max_duration_seconds => 600",
    );
    let run = row(&mut conn, &call).await;
    assert_eq!(run["command"], "git clone [REDACTED_URL]");
    let id = run["id"].as_str().unwrap().to_owned();
    call_the_rest(&mut conn, &id).await;
    let kept: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(kept, 1);
}
