//! After all faults: each worker, alone, still does a run. One that stands still for ever would be hidden by the others.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::plan::Plan;
use crate::stage::Stage;
use crate::tenant::Tenant;

/// Connections that went silent are given up, leases of the others lapse, and the run is done, well within this.
const ALONE_MAX: Duration = Duration::from_secs(90);

pub async fn each_worker_works_alone(stage: &Arc<Stage>, seed: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    for (index, worker) in stage.workers.iter().enumerate() {
        let others = || {
            stage
                .workers
                .iter()
                .enumerate()
                .filter(move |(other, _)| *other != index)
        };
        for (_, other) in others() {
            other.lock().await.freeze()?;
        }
        let mut tenant = Tenant::new(stage, stage.boxes[index].clone(), random.next_u64());
        if tokio::time::timeout(ALONE_MAX, tenant.one_run(Plan::short()))
            .await
            .is_err()
        {
            let name = &worker.lock().await.name;
            stage
                .witness
                .accuse(None, format!("worker {name}, alone, did no run within {ALONE_MAX:?}"));
        }
        for (_, other) in others() {
            other.lock().await.go_on()?;
        }
    }
    Ok(())
}
