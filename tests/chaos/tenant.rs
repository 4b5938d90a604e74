//! The load: one tenant a box admits run after run, follows each to its end, and asks some of them to end.
//!
//! Each speaks through a connection of its own that is cut, frozen and delayed like any other; what came of a commit whose
//! answer was lost it learns by asking for the same key again.

use std::sync::Arc;
use std::time::Duration;

use boxrun::ids::{BoxId, RunId};
use boxrun::runs::{self, NewRun, RunSecrets, RunState, Secret, StartRunError};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::plan::{Plan, Rivals, SECRET_VARIABLE};
use crate::stage::Stage;

/// Then nobody waits for an answer any longer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(150);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
const PAUSE_MAX_MS: u64 = 9000;

pub struct Tenant {
    stage: Arc<Stage>,
    box_id: BoxId,
    random: StdRng,
    line: Line,
    rival_line: Line,
}

/// A connection, or the next one.
struct Line {
    options: PgConnectOptions,
    open: Option<PgConnection>,
}

/// No answer, or one that says nothing: asked again.
struct Unanswered;

impl Line {
    fn new(options: PgConnectOptions) -> Self {
        Self { options, open: None }
    }

    /// One conversation over the connection; what does not end well ends the connection too.
    async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, StartRunError>,
    ) -> Result<Result<T, StartRunError>, Unanswered> {
        let asked = async {
            let mut conn = match self.open.take() {
                Some(conn) => conn,
                None => PgConnection::connect_with(&self.options)
                    .await
                    .map_err(|_| Unanswered)?,
            };
            match question(&mut conn).await {
                Err(StartRunError::Database(_) | StartRunError::Busy) => Err(Unanswered),
                answer => {
                    self.open = Some(conn);
                    Ok(answer)
                }
            }
        };
        tokio::time::timeout(ANSWER_MAX, asked).await.unwrap_or(Err(Unanswered))
    }
}

impl Tenant {
    pub fn new(stage: &Arc<Stage>, box_id: BoxId, seed: u64) -> Self {
        let options = stage.caller_options();
        Self {
            stage: Arc::clone(stage),
            box_id,
            random: StdRng::seed_from_u64(seed),
            line: Line::new(options.clone()),
            rival_line: Line::new(options),
        }
    }

    /// Until `enough`; the last run is followed to its end.
    pub async fn live(mut self, enough: CancellationToken) {
        loop {
            let pause = Duration::from_millis(self.random.random_range(0..PAUSE_MAX_MS));
            if enough.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            let plan = Plan::random(&mut self.random);
            self.one_run(plan).await;
        }
    }

    pub async fn one_run(&mut self, plan: Plan) {
        let key = Uuid::from_u128(self.random.random()).to_string();
        if let Some(run) = self.admit(&plan, &key).await {
            self.follow(run, &plan).await;
        }
    }

    /// Asks until told. None: refused, which is reported.
    async fn admit(&mut self, plan: &Plan, key: &str) -> Option<RunId> {
        loop {
            let new = self.new_run(plan, key);
            let rival = new.clone();
            let told = match plan.rivals {
                Rivals::None => admit(&mut self.line, new, true).await,
                Rivals::Commits => {
                    let (one, other) = tokio::join!(
                        admit(&mut self.line, new, true),
                        admit(&mut self.rival_line, rival, true)
                    );
                    if let Ok(Ok(id)) = other {
                        self.stage.witness.told(id, &self.box_id, key, plan);
                    }
                    one
                }
                Rivals::RollsBack => {
                    let (one, _) = tokio::join!(
                        admit(&mut self.line, new, true),
                        admit(&mut self.rival_line, rival, false)
                    );
                    one
                }
            };
            match told {
                Ok(Ok(id)) => {
                    self.stage.witness.told(id, &self.box_id, key, plan);
                    return Some(id);
                }
                Ok(Err(refusal)) => {
                    let what = format!("box {} is free, and key {key} was refused: {refusal}", self.box_id);
                    self.stage.witness.accuse(None, what);
                    return None;
                }
                Err(Unanswered) => tokio::time::sleep(BETWEEN_ATTEMPTS).await,
            }
        }
    }

    fn new_run(&self, plan: &Plan, key: &str) -> NewRun {
        let stage = &self.stage;
        let mut secrets = RunSecrets::default();
        if let Some(secret) = &plan.secret {
            secrets
                .env
                .insert(SECRET_VARIABLE.to_owned(), Secret::new(secret.clone()));
        }
        NewRun {
            secrets,
            secret_keys: Some(stage.secret_keys.clone()),
            max_duration: Some(plan.deadline),
            ..NewRun::new(
                stage.conversation,
                self.box_id.clone(),
                stage.principal.clone(),
                plan.command(),
                key,
            )
        }
    }

    async fn follow(&mut self, run: RunId, plan: &Plan) {
        let (stage, conversation) = (Arc::clone(&self.stage), self.stage.conversation);
        let mut cancel_when = plan.cancel_when;
        loop {
            let offset = stage.witness.runs()[&run].next_offset;
            let look = self.line.ask(async |conn| {
                let seen = found(runs::get_run(&mut *conn, conversation, run).await)?;
                let read = found(runs::read_output(conn, conversation, run, offset).await)?;
                Ok((seen, read))
            });
            match look.await {
                Ok(Ok((seen, read))) => {
                    // A terminal run has all its output; the two were read one after the other.
                    stage.witness.read(run, seen.state, &read);
                    if seen.state.is_terminal() {
                        return;
                    }
                    if cancel_when
                        .take_if(|when| progress(*when) <= progress(seen.state))
                        .is_some()
                    {
                        self.cancel(run).await;
                        continue;
                    }
                }
                Ok(Err(missing)) => {
                    stage.witness.accuse(
                        Some(run),
                        format!("told of its admission, its follower hears: {missing}"),
                    );
                    return;
                }
                Err(Unanswered) => {}
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn cancel(&mut self, run: RunId) {
        let conversation = self.stage.conversation;
        let note = |told| {
            let mut runs = self.stage.witness.runs();
            let about = runs.get_mut(&run).expect("its admission was told");
            about.cancel_sent = true;
            about.cancel_told = told;
        };
        note(None);
        loop {
            let asked = self.line.ask(async |conn| {
                let mut tx = conn.begin().await?;
                let cancelled = found(runs::cancel(&mut tx, conversation, run).await)?;
                tx.commit().await?;
                Ok(cancelled)
            });
            if let Ok(Ok(cancelled)) = asked.await {
                note(Some(cancelled.cancellation_requested_at));
                return;
            }
            tokio::time::sleep(BETWEEN_ATTEMPTS).await;
        }
    }
}

async fn admit(line: &mut Line, new: NewRun, commit: bool) -> Result<Result<RunId, StartRunError>, Unanswered> {
    line.ask(async |conn| {
        let mut tx = conn.begin().await?;
        let id = runs::start_run(&mut tx, new).await?.id;
        if commit {
            tx.commit().await?;
        } else {
            tx.rollback().await?;
        }
        Ok(id)
    })
    .await
}

/// A run that is not there is an answer, like a refusal; there is no fitting word for it among those.
fn found<T>(read: Result<T, runs::RunNotFound>) -> Result<T, StartRunError> {
    read.map_err(|error| match error {
        runs::RunNotFound::NotFound => StartRunError::BoxNotOwned,
        runs::RunNotFound::Database(source) => StartRunError::Database(source),
    })
}

fn progress(state: RunState) -> u8 {
    match state {
        RunState::Admitted => 0,
        RunState::Dispatched => 1,
        RunState::Running => 2,
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut | RunState::Lost => 3,
    }
}
