//! Where the commands for people go: to the database, or by HTTP to a web process.

use anyhow::Context;

use super::desk::Desk;
use super::remote::{Remote, Wanted};
use crate::config::{Environment, process_environment};
use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::conversations::{
    AttachedBox, attach_box, conversation_of_box, default_conversation, detach_box, list_boxes,
};
use crate::runs::{
    self, NewRun, OutputRead, Principal, RunFilter, RunState, RunView, TimelineEntry, events, list_runs, output,
    start_run,
};

/// One person's access, whichever way.
pub(super) enum Place {
    Database(Desk),
    Web(Remote),
}

impl Place {
    /// By HTTP where `BOXRUN_URL` is set, else in the database.
    pub async fn open() -> anyhow::Result<Self> {
        let environment = Environment::new(&process_environment);
        match Remote::open(&environment).await? {
            Some(remote) => Ok(Self::Web(remote)),
            None => Desk::open().await.map(Self::Database),
        }
    }

    pub fn principal(&self) -> &Principal {
        match self {
            Self::Database(desk) => &desk.principal,
            Self::Web(remote) => &remote.me.principal,
        }
    }

    pub fn default_conversation(&self) -> ConversationId {
        match self {
            Self::Database(desk) => default_conversation(&desk.principal),
            Self::Web(remote) => remote.me.default_conversation_id,
        }
    }

    /// Whether somebody is there to do the work; `true` where that can't be seen from here.
    pub async fn has_worker(&self) -> anyhow::Result<bool> {
        match self {
            Self::Database(desk) => desk.has_worker().await,
            Self::Web(_) => Ok(true),
        }
    }

    pub async fn find(&self, id: RunId) -> anyhow::Result<RunView> {
        match self {
            Self::Database(desk) => Ok(RunView::of(&desk.find(id).await?, &desk.masker)),
            Self::Web(remote) => remote.find(id).await,
        }
    }

    /// Newest first; `all`: of everybody, which only the database shows.
    pub async fn list(&self, state: Option<RunState>, all: bool, limit: u16) -> anyhow::Result<Vec<RunView>> {
        match self {
            Self::Database(desk) => {
                let filter = RunFilter {
                    owner: (!all).then(|| desk.principal.clone()),
                    state,
                    ..RunFilter::default()
                };
                let mut conn = desk.pool.acquire().await?;
                let runs = list_runs(&mut conn, &filter, limit).await?;
                Ok(runs.iter().map(|run| RunView::of(run, &desk.masker)).collect())
            }
            Self::Web(_) if all => anyhow::bail!("--all needs the database: by HTTP you see your own runs"),
            Self::Web(remote) => remote.list(state, limit).await,
        }
    }

    pub async fn timeline(&self, run: &RunView) -> anyhow::Result<Vec<TimelineEntry>> {
        match self {
            Self::Database(desk) => {
                let mut conn = desk.pool.acquire().await?;
                Ok(events::timeline(&mut conn, run.id).await?)
            }
            Self::Web(remote) => remote.timeline(run).await,
        }
    }

    pub async fn output(&self, run: &RunView, offset: i64) -> anyhow::Result<OutputRead> {
        match self {
            Self::Database(desk) => {
                let mut conn = desk.pool.acquire().await?;
                Ok(output::read_output(&mut conn, run.conversation_id, run.id, offset).await?)
            }
            Self::Web(remote) => remote.output(run, offset).await,
        }
    }

    pub async fn cancel(&self, run: &RunView) -> anyhow::Result<RunView> {
        match self {
            Self::Database(desk) => {
                let mut tx = desk.pool.begin().await?;
                let run = runs::cancel(&mut tx, run.conversation_id, run.id).await?;
                tx.commit().await?;
                Ok(RunView::of(&run, &desk.masker))
            }
            Self::Web(remote) => remote.cancel(run).await,
        }
    }

    pub async fn boxes(&self) -> anyhow::Result<Vec<AttachedBox>> {
        match self {
            Self::Database(desk) => {
                let mut conn = desk.pool.acquire().await?;
                Ok(list_boxes(&mut conn, &desk.principal).await?)
            }
            Self::Web(remote) => remote.boxes().await,
        }
    }

    /// The conversation that has the box.
    pub async fn conversation_of(&self, box_id: &BoxId) -> anyhow::Result<Option<ConversationId>> {
        match self {
            Self::Database(desk) => {
                let mut conn = desk.pool.acquire().await?;
                Ok(conversation_of_box(&mut conn, box_id, &desk.principal).await?)
            }
            Self::Web(remote) => {
                let boxes = remote.boxes().await?;
                let attached = boxes.into_iter().find(|attached| attached.id == *box_id);
                Ok(attached.map(|attached| attached.conversation_id))
            }
        }
    }

    pub async fn attach(&self, conversation: ConversationId, box_id: &BoxId) -> anyhow::Result<()> {
        match self {
            Self::Database(desk) => {
                desk.check_box(box_id).await?;
                let mut tx = desk.pool.begin().await?;
                attach_box(&mut tx, conversation, box_id, &desk.principal).await?;
                Ok(tx.commit().await?)
            }
            Self::Web(remote) => remote.attach(conversation, box_id).await,
        }
    }

    pub async fn detach(&self, box_id: &BoxId) -> anyhow::Result<()> {
        match self {
            Self::Database(desk) => {
                let mut tx = desk.pool.begin().await?;
                detach_box(&mut tx, box_id, &desk.principal).await?;
                Ok(tx.commit().await?)
            }
            Self::Web(remote) => remote.detach(box_id).await,
        }
    }

    /// Starts a run, on a box that is attached before where it is not yet. An exact repeat gets its run also while the
    /// provider is down.
    pub async fn start(&self, wanted: Wanted) -> anyhow::Result<RunView> {
        let attached = self.conversation_of(&wanted.box_id).await?;
        let run = match self {
            Self::Database(desk) => start_in_database(desk, &wanted).await?,
            Self::Web(remote) => {
                if attached.is_none() {
                    remote.attach(wanted.conversation, &wanted.box_id).await?;
                }
                remote.start(&wanted).await?
            }
        };
        if attached.is_none() {
            eprintln!(
                "boxrun: {} is attached to your conversation {} now",
                run.box_id, wanted.conversation
            );
        }
        Ok(run)
    }
}

async fn start_in_database(desk: &Desk, wanted: &Wanted) -> anyhow::Result<RunView> {
    let repeats = repeats(desk, wanted).await?;
    let box_checked = !repeats && desk.check_box(&wanted.box_id).await?;
    let mut new = NewRun::new(
        wanted.conversation,
        wanted.box_id.clone(),
        desk.principal.clone(),
        wanted.command.clone(),
        wanted.key.clone(),
    );
    new.cwd.clone_from(&wanted.cwd);
    new.env.clone_from(&wanted.env);
    new.max_duration = wanted.max_duration;
    new.limit = desk.max_duration;
    new.box_checked = box_checked;
    let mut tx = desk.pool.begin().await?;
    if !repeats {
        attach_box(&mut tx, wanted.conversation, &wanted.box_id, &desk.principal).await?;
    }
    let run = start_run(&mut tx, new).await?;
    tx.commit()
        .await
        .context("the run could not be committed; nothing was started")?;
    Ok(RunView::of(&run, &desk.masker))
}

async fn repeats(desk: &Desk, wanted: &Wanted) -> anyhow::Result<bool> {
    let filter = RunFilter {
        conversation_id: Some(wanted.conversation),
        idempotency_key: Some(wanted.key.clone()),
        ..RunFilter::default()
    };
    let mut conn = desk.pool.acquire().await?;
    let known = list_runs(&mut conn, &filter, 1).await?;
    Ok(known
        .iter()
        .any(|run| run.box_id == wanted.box_id && run.command == wanted.command))
}
