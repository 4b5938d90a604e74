//! The SQL way in: what `docs/sql.md` promises to callers, as a role that may do nothing but call the functions.

mod clients;
mod functions;
mod pgbouncer;
mod refusals;
mod rights;
mod same_rules;
mod transactions;

use boxrun::schema;
use serde_json::Value;
use sqlx::postgres::PgDatabaseError;
use sqlx::{Connection, PgConnection, PgPool};

const CONVERSATION: &str = "11111111-1111-4111-8111-111111111111";
const ELSEWHERE: &str = "22222222-2222-4222-8222-222222222222";
const BOX: &str = "bx_8bhkse3n";
const OTHER_BOX: &str = "bx_22222222";

/// A connection of the web app: `boxrun_app`, with nothing but what `boxrun migrate --roles` gave it.
async fn app(pool: &PgPool) -> PgConnection {
    schema::grant_roles(pool).await.expect("the roles are made");
    another_app(pool).await
}

/// One more of them.
async fn another_app(pool: &PgPool) -> PgConnection {
    let mut conn = PgConnection::connect_with(&pool.connect_options()).await.unwrap();
    run(&mut conn, "set role boxrun_app").await;
    conn
}

/// As [`app`], with [`BOX`] attached to [`CONVERSATION`].
async fn app_with_box(pool: &PgPool) -> PgConnection {
    let mut conn = app(pool).await;
    run(&mut conn, &attach(CONVERSATION, BOX, "u1")).await;
    conn
}

fn attach(conversation: &str, box_id: &str, user: &str) -> String {
    format!(
        r#"select * from boxrun.attach_box(conversation_id => '{conversation}', box_id => '{box_id}',
                                           principal => '{{"type": "user", "id": "{user}"}}')"#
    )
}

/// `start_run` for [`CONVERSATION`], [`BOX`] and user u1; `more` are further arguments.
fn start(command: &str, key: &str, more: &str) -> String {
    format!(
        r#"boxrun.start_run(conversation_id => '{CONVERSATION}', box_id => '{BOX}', principal => '{{"type": "user", "id": "u1"}}',
                            command => '{command}', idempotency_key => '{key}' {more})"#
    )
}

/// Runs statements that need no answer.
async fn run(conn: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// One value of one row.
async fn value<T>(conn: &mut PgConnection, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    let value = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await;
    value.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The one row of a function call, as JSON.
async fn row(conn: &mut PgConnection, call: &str) -> Value {
    value(conn, &format!("select to_jsonb(r) from {call} r")).await
}

/// The id of the one run that a function call gives.
async fn run_id(conn: &mut PgConnection, call: &str) -> String {
    row(conn, call).await["id"]
        .as_str()
        .expect("a run has an id")
        .to_owned()
}

/// An error as a caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    sqlstate: String,
    message: String,
    detail: String,
    hint: String,
}

/// How a statement is refused.
async fn refusal(conn: &mut PgConnection, sql: &str) -> Refusal {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(conn).await;
    let error = done.err().unwrap_or_else(|| panic!("it is not refused: {sql}"));
    let error = error
        .as_database_error()
        .unwrap_or_else(|| panic!("{sql}: {error}"))
        .downcast_ref::<PgDatabaseError>();
    Refusal {
        sqlstate: error.code().to_owned(),
        message: error.message().to_owned(),
        detail: error.detail().unwrap_or_default().to_owned(),
        hint: error.hint().unwrap_or_default().to_owned(),
    }
}
