//! The output of a run: pieces that follow each other, of which the newest bytes are kept.

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

use super::masking::Carried;
use super::read::{RunNotFound, get_run};
use super::run::Run;
use crate::ids::{ConversationId, RunId};

/// Text released from the log, ready to be stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Released {
    /// Bytes of the log that this text stands for.
    pub log_bytes: i64,
    /// Of these, bytes at the beginning that were skipped; they count as output that is not kept.
    pub skipped: i64,
    /// Valid UTF-8 without NUL, secrets masked.
    pub text: String,
    /// What the next release has to know of the log before it; `None`: what it knows already.
    pub carried: Option<Carried>,
}

impl Released {
    /// No new output.
    #[must_use]
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Whether there is no new output.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.log_bytes == 0 && self.text.is_empty()
    }
}

/// Where a piece of output goes and what is kept afterwards.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    start_offset: i64,
    text: &'a str,
    pub last_output_offset: i64,
    pub output_base_offset: i64,
}

/// Finds the place of `released` behind the run's output, keeping the newest `max_bytes`, cut at a character.
pub(super) async fn place<'a>(
    conn: &mut PgConnection,
    run: &Run,
    released: &'a Released,
    max_bytes: i64,
) -> sqlx::Result<Placed<'a>> {
    // What is skipped counts, and nothing before it is kept.
    let start = run.last_output_offset + released.skipped;
    let kept_from = if released.skipped > 0 {
        start
    } else {
        run.output_base_offset
    };
    let last = start + length(&released.text);
    let wanted = last - max_bytes;
    let in_new = usize::try_from(wanted - start).ok();
    let cut = in_new.map_or(0, |cut| released.text.ceil_char_boundary(cut));
    let start_offset = start + i64::try_from(cut).unwrap_or(i64::MAX);
    let output_base_offset = if wanted <= kept_from || released.text.is_empty() {
        kept_from
    } else if in_new.is_some() {
        start_offset
    } else {
        next_character(conn, run.id, wanted).await?
    };
    Ok(Placed {
        start_offset,
        text: &released.text[cut..],
        last_output_offset: last,
        output_base_offset,
    })
}

/// The first start of a character at or after `offset`, which lies inside the stored output.
async fn next_character(conn: &mut PgConnection, run_id: RunId, offset: i64) -> sqlx::Result<i64> {
    let bytes = sqlx::query_scalar!(
        r#"select substring(convert_to(text, 'UTF8') from ($2 - start_offset + 1)::int for 4) as "bytes!"
             from boxrun.run_output where run_id = $1 and start_offset <= $2 order by start_offset desc limit 1"#,
        run_id.0,
        offset
    )
    .fetch_optional(conn)
    .await?;
    let continuation = bytes
        .unwrap_or_default()
        .iter()
        .take_while(|byte| **byte & 0xC0 == 0x80)
        .count();
    Ok(offset + i64::try_from(continuation).unwrap_or(0))
}

/// Stores a placed piece and removes the pieces that are no longer kept.
pub(super) async fn store(conn: &mut PgConnection, run: &Run, placed: &Placed<'_>) -> sqlx::Result<()> {
    if !placed.text.is_empty() {
        sqlx::query!(
            "insert into boxrun.run_output (run_id, start_offset, text) values ($1, $2, $3)",
            run.id.0,
            placed.start_offset,
            placed.text
        )
        .execute(&mut *conn)
        .await?;
    }
    if placed.output_base_offset > run.output_base_offset {
        sqlx::query!(
            // Only what goes is looked at: all before the piece that is the first to be kept, or is the last to go.
            "delete from boxrun.run_output
              where run_id = $1 and start_offset < $2
                and (start_offset + octet_length(text) <= $2
                     or start_offset < (select max(o.start_offset) from boxrun.run_output o
                                         where o.run_id = $1 and o.start_offset <= $2))",
            run.id.0,
            placed.output_base_offset
        )
        .execute(conn)
        .await?;
    }
    Ok(())
}

/// What is kept of a run's output from an offset on. Offsets count bytes of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutputRead {
    /// The text from `max(offset, output_base_offset)` on; an offset inside a character starts at the next one.
    pub output: String,
    /// The offset as asked.
    pub offset: i64,
    /// Where to read on: all bytes released so far.
    pub next_offset: i64,
    /// The first byte that is still kept.
    pub output_base_offset: i64,
    /// Whether bytes between `offset` and the text are gone.
    pub truncated: bool,
}

/// Reads the output of a run from `offset` on; past the end it is empty. Reading on from `next_offset` yields every kept
/// byte exactly once.
///
/// # Errors
/// [`RunNotFound::NotFound`] also where the run belongs to another conversation.
pub async fn read_output(
    conn: &mut PgConnection,
    conversation_id: ConversationId,
    run_id: RunId,
    offset: i64,
) -> Result<OutputRead, RunNotFound> {
    get_run(&mut *conn, conversation_id, run_id).await?;
    read(conn, run_id, offset).await?.ok_or(RunNotFound::NotFound)
}

/// As [`read_output`], of a run of whatever conversation. One statement, so that offsets and text belong together.
pub(crate) async fn read(conn: &mut PgConnection, run_id: RunId, offset: i64) -> sqlx::Result<Option<OutputRead>> {
    let found = read_from(conn, run_id, offset, None).await?;
    Ok(found.map(|(part, next_offset)| OutputRead {
        output: part.text,
        offset,
        next_offset,
        output_base_offset: part.output_base_offset,
        truncated: offset < part.output_base_offset,
    }))
}

/// A piece of a run's output, as followers get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputPart {
    /// Where the text begins.
    pub offset: i64,
    pub text: String,
    /// The first byte that is still kept.
    pub output_base_offset: i64,
}

impl OutputPart {
    /// Where to read on.
    pub fn next_offset(&self) -> i64 {
        self.offset + length(&self.text)
    }
}

/// Some of a run's output from `offset` on: about `max_bytes`, to the end of a stored piece. Empty at the end of it.
pub(crate) async fn read_part(
    conn: &mut PgConnection,
    run_id: RunId,
    offset: i64,
    max_bytes: i64,
) -> sqlx::Result<Option<OutputPart>> {
    let found = read_from(conn, run_id, offset, Some(max_bytes)).await?;
    Ok(found.map(|(part, _)| part))
}

/// The part from `offset` on, and all bytes released so far.
async fn read_from(
    conn: &mut PgConnection,
    run_id: RunId,
    offset: i64,
    max_bytes: Option<i64>,
) -> sqlx::Result<Option<(OutputPart, i64)>> {
    let rows = sqlx::query_file!("src/runs/sql/read_output.sql", run_id.0, offset, max_bytes)
        .fetch_all(conn)
        .await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let (last_output_offset, output_base_offset) = (first.last_output_offset, first.output_base_offset);
    let mut part = OutputPart {
        offset: offset.max(output_base_offset),
        text: String::new(),
        output_base_offset,
    };
    for row in &rows {
        let (Some(start), Some(text)) = (row.start_offset, &row.text) else {
            continue;
        };
        let skip = usize::try_from(part.offset - start).unwrap_or(0).min(text.len());
        let skip = text.ceil_char_boundary(skip);
        if part.text.is_empty() {
            part.offset = start + length(&text[..skip]);
        }
        part.text.push_str(&text[skip..]);
    }
    Ok(Some((part, last_output_offset)))
}

/// What several runs have released from an offset on that is the end of what was read before: one statement for all.
pub(crate) async fn read_news(
    conn: &mut PgConnection,
    from: &[(RunId, i64)],
    max_bytes: i64,
) -> sqlx::Result<Vec<(RunId, OutputPart)>> {
    if from.is_empty() {
        return Ok(Vec::new());
    }
    let (ids, offsets): (Vec<Uuid>, Vec<i64>) = from.iter().map(|(id, offset)| (id.0, *offset)).unzip();
    let rows = sqlx::query!(
        r#"select o.run_id as "run_id!: RunId", o.start_offset as "start_offset!", o.text as "text!",
                  r.output_base_offset as "output_base_offset!"
             from unnest($1::uuid[], $2::bigint[]) f(run_id, from_offset)
             join boxrun.runs r on r.id = f.run_id
             join boxrun.run_output o on o.run_id = f.run_id
              and o.start_offset >= f.from_offset and o.start_offset < f.from_offset + $3
            order by o.run_id, o.start_offset"#,
        &ids,
        &offsets,
        max_bytes
    )
    .fetch_all(conn)
    .await?;
    let mut news: Vec<(RunId, OutputPart)> = Vec::new();
    for row in rows {
        match news.last_mut() {
            Some((id, part)) if *id == row.run_id && part.next_offset() == row.start_offset => {
                part.text.push_str(&row.text);
            }
            Some((id, _)) if *id == row.run_id => {}
            Some(_) | None => news.push((
                row.run_id,
                OutputPart {
                    offset: row.start_offset,
                    text: row.text,
                    output_base_offset: row.output_base_offset,
                },
            )),
        }
    }
    Ok(news)
}

fn length(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}
