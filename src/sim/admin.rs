//! Telling the simulator what to do, with the same key:
//!
//! ```text
//! GET    /_sim/record                        the record, JSON lines
//! GET    /_sim/boxes/{id}                    {"id","state","boot_id","starts"}
//! PUT    /_sim/boxes/{id}                    {"state":"archived"}: sets only what the box says about itself
//! POST   /_sim/boxes/{id}/stop               kills its processes; 409 box_stopped from then on
//! POST   /_sim/boxes/{id}/restart            kills its processes; a new boot id
//! POST   /_sim/boxes/{id}/resume             ready again, with a new boot id
//! GET    /_sim/faults                        the rules that can still strike
//! POST   /_sim/faults                        {"fault":{"kind":"lost_answer"},"on":"dispatch","times":1}, see FaultRule
//! DELETE /_sim/faults                        behave again
//! ```

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::boxes::{Power, SimBox, SimBoxState};
use super::faults::FaultRule;
use super::reply::Reply;
use super::routes::AdminCall;
use super::{SimError, World};
use crate::ids::BoxId;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoxChange {
    state: SimBoxState,
}

pub(super) async fn answer(world: &World, call: AdminCall, body: &[u8]) -> Reply {
    match call {
        AdminCall::Record => world
            .record
            .read()
            .map_or_else(|error| failed(&error), Reply::json_lines),
        AdminCall::Faults => Reply::json(&json!({ "faults": world.faults.list() })),
        AdminCall::AddFault => read::<FaultRule>(body).map_or_else(|reply| reply, |rule| add_fault(world, rule)),
        AdminCall::ClearFaults => {
            world.faults.clear();
            Reply::json(&json!({ "faults": [] }))
        }
        AdminCall::ShowBox(id) => match find(world, &id) {
            Ok(sim_box) => show(&sim_box).await,
            Err(reply) => reply,
        },
        AdminCall::SetBox(id) => match (find(world, &id), read::<BoxChange>(body)) {
            (Ok(sim_box), Ok(change)) => {
                let changed = sim_box.set_state(change.state).await;
                world
                    .record
                    .write(json!({ "event": "box", "box": id, "state": change.state }));
                shown_if(changed, &sim_box).await
            }
            (Err(reply), _) | (_, Err(reply)) => reply,
        },
        AdminCall::StopBox(id) => power(world, &id, Power::Stop, "stop").await,
        AdminCall::RestartBox(id) => power(world, &id, Power::Restart, "restart").await,
        AdminCall::ResumeBox(id) => power(world, &id, Power::Resume, "resume").await,
    }
}

fn add_fault(world: &World, rule: FaultRule) -> Reply {
    match world.faults.add(rule) {
        Ok(()) => Reply::json(&json!({ "faults": world.faults.list() })),
        Err(error) => Reply::error(400, "invalid_request", &error.to_string()),
    }
}

async fn power(world: &World, id: &BoxId, change: Power, name: &str) -> Reply {
    let sim_box = match find(world, id) {
        Ok(sim_box) => sim_box,
        Err(reply) => return reply,
    };
    let changed = sim_box.power(change).await;
    world.record.write(json!({ "event": "box", "box": id, "change": name }));
    shown_if(changed, &sim_box).await
}

async fn shown_if(changed: Result<(), SimError>, sim_box: &SimBox) -> Reply {
    match changed {
        Ok(()) => show(sim_box).await,
        Err(error) => failed(&error),
    }
}

async fn show(sim_box: &SimBox) -> Reply {
    match (sim_box.boot_id(), sim_box.starts()) {
        (Ok(boot_id), Ok(starts)) => Reply::json(
            &json!({ "id": sim_box.id, "state": sim_box.state().await, "boot_id": boot_id, "starts": starts }),
        ),
        (Err(error), _) | (_, Err(error)) => failed(&error),
    }
}

fn find(world: &World, id: &BoxId) -> Result<Arc<SimBox>, Reply> {
    world
        .boxes
        .find(id)
        .map_err(|error| failed(&error))?
        .ok_or_else(Reply::no_such_box)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Reply> {
    serde_json::from_slice(body).map_err(|error| Reply::error(400, "invalid_request", &error.to_string()))
}

fn failed(error: &SimError) -> Reply {
    Reply::error(500, "internal_error", &error.to_string())
}
