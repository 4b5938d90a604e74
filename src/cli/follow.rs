//! Following one run on a terminal: its output on stdout as it appears, everything else on stderr.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use eventsource_stream::{EventStreamError, Eventsource as _};
use futures::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use tokio::time::Instant;

use crate::runs::{RunState, RunView, output, read};

use super::EXIT_FAILED;
use super::desk::Desk;
use super::place::Place;
use super::print;
use super::remote::{Remote, RemoteError};

/// Between two looks at the database. Output sends no notification.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long database or web process may stay out of reach before following ends.
const PATIENCE: Duration = Duration::from_mins(2);
/// Comments come more often than this; a stream without any has gone silent.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// What is said on stderr while following.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narration {
    States,
    Silent,
}

/// Prints output from `offset` on until the run has ended, and returns the run as it ended.
pub(super) async fn follow(place: &Place, run: &RunView, offset: i64, narration: Narration) -> anyhow::Result<RunView> {
    let mut follower = Follower {
        offset,
        narration,
        told: None,
        told_error: None,
        waiting: Waiting::start(narration),
    };
    match place {
        Place::Database(desk) => follow_in_database(&mut follower, desk, run).await,
        Place::Web(remote) => follow_by_http(&mut follower, remote, run).await,
    }
}

async fn follow_in_database(follower: &mut Follower, desk: &Desk, run: &RunView) -> anyhow::Result<RunView> {
    let mut out_of_reach: Option<Instant> = None;
    loop {
        match look(follower, desk, run).await {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => out_of_reach = None,
            Err(error) if error.downcast_ref::<sqlx::Error>().is_some() => {
                let since = *out_of_reach.get_or_insert_with(|| {
                    let trouble = format!("the database is out of reach ({error}); the run goes on, trying again");
                    follower.waiting.say(&trouble);
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn look(follower: &mut Follower, desk: &Desk, run: &RunView) -> anyhow::Result<Option<RunView>> {
    let mut conn = desk.pool.acquire().await?;
    // The run first: what it has written by the time it is terminal is read after that.
    let Some(now) = read::find(&mut conn, run.id).await? else {
        anyhow::bail!("box_run_gone: run {} was removed from the database", run.id);
    };
    let now = RunView::of(&now, &desk.masker);
    follower.tell(&now);
    if let Some(read) = output::read(&mut conn, run.id, follower.offset).await? {
        if read.truncated {
            follower.skip(read.output_base_offset);
        }
        follower.print(&read.output, read.next_offset);
    }
    follower.tick(now.state);
    Ok(now.state.is_terminal().then_some(now))
}

#[derive(Deserialize)]
struct OutputEvent {
    output: String,
    next_offset: i64,
}

#[derive(Deserialize)]
struct GapEvent {
    to: i64,
}

#[derive(Deserialize)]
struct RunEvent {
    run: RunView,
}

/// A stream that ends before the run does is asked for anew from where it was.
async fn follow_by_http(follower: &mut Follower, remote: &Remote, run: &RunView) -> anyhow::Result<RunView> {
    let delays = || {
        ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(Duration::from_secs(5))
            .with_jitter()
            .without_max_times()
            .with_total_delay(Some(PATIENCE))
            .build()
    };
    let mut delay = delays();
    let mut is_told = false;
    loop {
        let problem = match remote.stream(run, follower.offset).await {
            Ok(response) => match read_events(follower, response, &mut delay, &delays).await? {
                Streamed::Ended(ended) => return Ok(*ended),
                Streamed::Cut(problem) => problem,
            },
            Err(RemoteError::OutOfReach(problem)) => problem,
            Err(refused) => return Err(refused.into()),
        };
        let Some(delay) = delay.next() else {
            anyhow::bail!("the web process is out of reach ({problem}); the run goes on");
        };
        if !std::mem::replace(&mut is_told, true) {
            tracing::debug!(problem, "the stream is asked for anew");
        }
        tokio::time::sleep(delay).await;
    }
}

enum Streamed {
    Ended(Box<RunView>),
    Cut(String),
}

async fn read_events<D>(
    follower: &mut Follower,
    response: reqwest::Response,
    delay: &mut D,
    anew: &impl Fn() -> D,
) -> anyhow::Result<Streamed> {
    let mut events = response.bytes_stream().eventsource();
    loop {
        let Ok(event) = tokio::time::timeout(SILENCE_MAX, events.next()).await else {
            return Ok(Streamed::Cut("nothing comes any more".to_owned()));
        };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(EventStreamError::Transport(error))) => {
                return Ok(Streamed::Cut(error.without_url().to_string()));
            }
            Some(Err(error)) => anyhow::bail!("that is no stream of boxrun: {error}"),
            None => return Ok(Streamed::Cut("the stream ended".to_owned())),
        };
        // It works again.
        *delay = anew();
        match event.event.as_str() {
            "output" => {
                let output: OutputEvent = serde_json::from_str(&event.data)?;
                follower.print(&output.output, output.next_offset);
            }
            "gap" => {
                let gap: GapEvent = serde_json::from_str(&event.data)?;
                follower.skip(gap.to);
            }
            "state" => {
                let now: RunEvent = serde_json::from_str(&event.data)?;
                follower.tell(&now.run);
                follower.tick(now.run.state);
            }
            "end" => {
                let ended: RunEvent = serde_json::from_str(&event.data)?;
                return Ok(Streamed::Ended(Box::new(ended.run)));
            }
            // A newer version says more.
            _ => {}
        }
    }
}

struct Follower {
    offset: i64,
    narration: Narration,
    told: Option<RunState>,
    told_error: Option<String>,
    waiting: Waiting,
}

/// What moves on a terminal until the first output comes: the state and for how long. In a pipe there is nothing of it.
struct Waiting(ProgressBar);

impl Waiting {
    fn start(narration: Narration) -> Self {
        let bar = match narration {
            // It hides itself where stderr is no terminal.
            Narration::States => ProgressBar::new_spinner(),
            Narration::Silent => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(RunState::Admitted.as_str());
        Self(bar)
    }

    /// Says a line that stays.
    fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("boxrun: {line}"));
    }

    fn tick(&self, state: RunState) {
        self.0.set_message(state.as_str());
        self.0.tick();
    }

    /// Something else is on the terminal from here on.
    fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

impl Follower {
    /// Says the run's state, and what holds it up, each once.
    fn tell(&mut self, run: &RunView) {
        if self.narration == Narration::Silent || run.state.is_terminal() {
            return;
        }
        if self.told != Some(run.state) {
            self.told = Some(run.state);
            self.waiting.say(&progress(run));
        }
        if run.last_error != self.told_error {
            self.told_error.clone_from(&run.last_error);
            if let Some(error) = &run.last_error {
                self.waiting.say(&format!("still {}: {error}; trying again", run.state));
            }
        }
    }

    fn print(&mut self, text: &str, next_offset: i64) {
        if !text.is_empty() {
            self.waiting.end();
            print::text(text);
        }
        self.offset = next_offset.max(self.offset);
    }

    /// Output before `base` is not there any more.
    fn skip(&mut self, base: i64) {
        let skipped = base - self.offset;
        self.waiting
            .say(&format!("{skipped} bytes of output are no longer kept"));
        self.offset = base;
    }

    fn tick(&self, state: RunState) {
        if !self.waiting.0.is_finished() {
            self.waiting.tick(state);
        }
    }
}

fn progress(run: &RunView) -> String {
    match run.state {
        RunState::Admitted => format!("run {} is admitted; a worker starts it", run.id),
        RunState::Dispatched => format!("dispatched to {}", run.box_id),
        RunState::Running => format!("running on {}", run.box_id),
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut | RunState::Lost => {
            ending(run)
        }
    }
}

/// How a run ended, in one line.
pub(super) fn ending(run: &RunView) -> String {
    let took = run
        .finished_at
        .map(|at| (at - run.admitted_at).num_milliseconds())
        .unwrap_or_default();
    let took = format!("{}.{} s", took / 1000, took % 1000 / 100);
    let reason = run
        .failure_reason
        .as_deref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    let status = run
        .exit_status
        .map(|status| format!(" with exit status {status}"))
        .unwrap_or_default();
    format!("{}{status}{reason} after {took}", run.state)
}

/// The exit status of a process that stands for the run.
pub(super) fn exit_status(run: &RunView) -> u8 {
    match run.state {
        RunState::Completed => 0,
        RunState::Failed => run
            .exit_status
            .and_then(|status| u8::try_from(status).ok())
            .unwrap_or(EXIT_FAILED),
        RunState::TimedOut => 124,
        RunState::Cancelled => 130,
        RunState::Lost | RunState::Admitted | RunState::Dispatched | RunState::Running => EXIT_FAILED,
    }
}
