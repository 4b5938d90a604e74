//! Live output of one run as server-sent events: each byte once, in order, resumable from any event.
//!
//! `output` has the next offset as its id, `gap` the offset behind it, so that a browser that reconnects goes on exactly
//! there. All output comes before the `state` that it belongs to, and `end` is the last event. Its id ends in `-end`: who
//! comes back with that has everything, and is answered 204, upon which a browser stops.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use serde::Serialize;
use tokio::time::Instant;

use super::access::{Caller, Reader};
use super::app::App;
use super::extract::{Asked, RunPlace};
use super::followers::Stage;
use super::problem::Problem;
use super::runs::{OutputQuery, parse_offset};
use crate::ids::RunId;
use crate::runs::output::{self, OutputPart};
use crate::runs::{Run, RunView, read};
use crate::telemetry::{self, OpenStream};

/// A comment so often, so that nothing on the way takes the connection for dead; and the reader's right is looked at again.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Read from the database at a time.
const PART_MAX_BYTES: i64 = 64 * 1024;
/// A browser waits so long before it comes back.
const RETRY: Duration = Duration::from_secs(1);
const END_SUFFIX: &str = "-end";

#[derive(Serialize)]
struct OutputEvent<'a> {
    output: &'a str,
    offset: i64,
    next_offset: i64,
}

#[derive(Serialize)]
struct GapEvent {
    from: i64,
    to: i64,
}

#[derive(Serialize)]
struct RunEvent<'a> {
    run: &'a RunView,
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}/stream", tag = "runs",
    operation_id = "streamOutput",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13"), OutputQuery,
           ("Last-Event-ID" = Option<String>, Header, description = "go on behind this event")),
    responses((status = 200, content_type = "text/event-stream", body = String,
               description = "`output` {output, offset, next_offset} with the next offset as id, `gap` {from, to}, `state` {run}, `end` {run}; a comment every 15 s"),
              (status = 204, description = "`Last-Event-ID` is that of the end")))]
pub(super) async fn stream(
    State(app): State<App>,
    caller: Option<Caller>,
    place: RunPlace,
    headers: HeaderMap,
    Asked(query): Asked<OutputQuery>,
) -> Result<Response, Problem> {
    let offset = match headers.get("last-event-id") {
        Some(id) => {
            let id = id.to_str().unwrap_or("-");
            if let Some(at_end) = id.strip_suffix(END_SUFFIX) {
                parse_offset(at_end)?;
                return Ok(StatusCode::NO_CONTENT.into_response());
            }
            parse_offset(id)?
        }
        None => query.offset()?,
    };
    let reader = Reader::of(&app, caller, query.ticket).await?;
    let mut conn = app.connection().await?;
    let run = reader.run(&mut conn, &place).await?;
    drop(conn);
    // Refused before the stream begins, where there are too many.
    drop(app.followers.follow(&run)?);
    let events = Sse::new(events(app, reader, run, offset)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    let mut response = events.into_response();
    // Proxies that gather answers would hold lines back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The events of a run from `offset` on. The stream ends after `end`, and without it where the reader has to come back: the
/// process stops, the ticket or token is no longer good, the database is out of reach.
fn events(app: App, reader: Reader, run: Run, offset: i64) -> impl Stream<Item = Result<Event, Infallible>> {
    async_stream::stream! {
        let Ok(mut follower) = app.followers.follow(&run) else { return };
        let _open = OpenStream::begin();
        // No event: it only tells a browser how soon to come back.
        yield Ok(Event::default().retry(RETRY));
        let id = run.id;
        let mut offset = offset;
        let mut told: Option<Stage> = None;
        let mut seen = follower.latest();
        let mut rights_end = Instant::now() + KEEP_ALIVE;
        loop {
            if told != Some(seen.stage) || seen.output_offset > offset {
                // The run as it is now: all output that it counts comes before the state that it is in.
                let run = if told == Some(seen.stage) { None } else { fresh(&app, id).await };
                if told != Some(seen.stage) && run.is_none() {
                    return;
                }
                let until = run.as_ref().map_or(seen.output_offset, |run| run.last_output_offset);
                while offset < until {
                    let Some(part) = next_part(&app, id, seen.news.as_deref(), offset).await else { return };
                    if part.output_base_offset > offset {
                        yield Ok(gap(offset, part.output_base_offset));
                        offset = part.output_base_offset;
                    }
                    if part.text.is_empty() {
                        break;
                    }
                    yield Ok(output_event(&part));
                    offset = part.next_offset();
                }
                if let Some(run) = run {
                    let view = app.view(&run);
                    let stage = Stage::of(&run);
                    if told != Some(stage) {
                        told = Some(stage);
                        yield Ok(run_event("state", &view));
                    }
                    if run.state.is_terminal() {
                        yield Ok(run_event("end", &view).id(format!("{offset}{END_SUFFIX}")));
                        return;
                    }
                }
            }
            tokio::select! {
                () = follower.changed() => seen = follower.latest(),
                () = app.stopping.cancelled() => return,
                () = tokio::time::sleep_until(rights_end) => {
                    rights_end = Instant::now() + KEEP_ALIVE;
                    if !reader.is_good_still(&app).await.unwrap_or(false) {
                        return;
                    }
                }
            }
            if seen.gone {
                return;
            }
        }
    }
}

/// Output from `offset` on: what all followers were given, or what the database has. `None`: it can't be had.
async fn next_part(app: &App, id: RunId, news: Option<&OutputPart>, offset: i64) -> Option<OutputPart> {
    if let Some(news) = news.filter(|news| news.offset == offset) {
        return Some(news.clone());
    }
    let mut conn = app.connection().await.ok()?;
    output::read_part(&mut conn, id, offset, PART_MAX_BYTES).await.ok()?
}

async fn fresh(app: &App, id: RunId) -> Option<Run> {
    let mut conn = app.connection().await.ok()?;
    read::find(&mut conn, id).await.ok()?
}

fn output_event(part: &OutputPart) -> Event {
    let next_offset = part.next_offset();
    let data = OutputEvent {
        output: &part.text,
        offset: part.offset,
        next_offset,
    };
    event("output", &data).id(next_offset.to_string())
}

fn gap(from: i64, to: i64) -> Event {
    event("gap", &GapEvent { from, to }).id(to.to_string())
}

fn run_event(name: &'static str, run: &RunView) -> Event {
    event(name, &RunEvent { run })
}

fn event(name: &'static str, data: &impl Serialize) -> Event {
    telemetry::stream_event(name);
    let data = serde_json::to_string(data).expect("numbers, texts and times");
    Event::default().event(name).data(data)
}
