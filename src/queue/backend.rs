//! The queue as an apalis backend: each kind of job is an apalis worker of its own.
//!
//! The backend only hands on what the claimer has claimed, through a channel, so apalis needs no polling strategy, and a
//! wake-up is the channel's. It acknowledges nothing: a job finishes itself in its run's transaction, and a job that is
//! dropped unfinished comes back when its lease lapses.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use apalis_core::backend::finalize::Ephemeral;
use apalis_core::backend::{Backend, BackendConfig};
use apalis_core::layers::Identity;
use apalis_core::task::Task;
use apalis_core::task::task_id::RandomId;
use apalis_core::worker::builder::WorkerBuilder;
use apalis_core::worker::context::WorkerContext;
use apalis_core::worker::event::Event;
use apalis_core::worker::ext::event_listener::EventListenerExt;
use apalis_core::worker::ext::parallelize::ParallelizeExt;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc::UnboundedReceiver;

use super::claim::ClaimedJob;
use super::kind::JobKind;

/// The jobs of one kind, as apalis takes them. It ends when the claimer does.
#[derive(Debug)]
pub struct LaneBackend {
    jobs: UnboundedReceiver<ClaimedJob>,
}

impl Backend for LaneBackend {
    type Task = Task<ClaimedJob>;
    type Error = Infallible;

    fn poll_ready(&mut self, _: &mut Context<'_>, _: &WorkerContext) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        _: &WorkerContext,
    ) -> Poll<Option<Result<Task<ClaimedJob>, Infallible>>> {
        self.jobs.poll_recv(cx).map(|job| job.map(|job| Ok(Task::new(job))))
    }

    fn poll_close(&mut self, _: &mut Context<'_>, worker: &WorkerContext) -> Poll<Result<(), Infallible>> {
        // A backend that runs dry closes, but its worker ends only once it is told to; the only error is that it has not started.
        let _ = worker.stop();
        Poll::Ready(Ok(()))
    }
}

impl BackendConfig for LaneBackend {
    type Args = ClaimedJob;
    type Id = RandomId;
    type Kind = Ephemeral;
    type Config = ();
    type Layer = Identity;

    fn config(&self) -> &() {
        &()
    }

    fn middleware(&mut self, _: &mut WorkerContext) -> Identity {
        Identity::new()
    }
}

/// Serves one kind of job until its channel closes and the last job in hand is done. `handle` never fails: what goes wrong
/// is the job's own record. A panic ends that job alone.
pub fn serve<H, F>(
    worker: &str,
    kind: JobKind,
    jobs: UnboundedReceiver<ClaimedJob>,
    handle: Arc<H>,
) -> BoxFuture<'static, ()>
where
    H: Fn(ClaimedJob) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let worker = WorkerBuilder::new(format!("{worker}/{kind}"))
        .backend(LaneBackend { jobs })
        .parallelize(tokio::spawn)
        .on_event(move |_, event| {
            if let Event::Error(error) = event {
                tracing::error!(%kind, %error, "a job ended without an outcome; it comes back when its lease lapses");
            }
        })
        .build(move |job: ClaimedJob| handle(job));
    let served = worker.run().map(move |served| {
        if let Err(error) = served {
            tracing::error!(%kind, %error, "the apalis worker ended");
        }
    });
    served.boxed()
}
