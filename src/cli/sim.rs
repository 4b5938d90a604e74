//! `boxrun sim`: the local box provider as a process of its own.

use std::process::ExitCode;

use secrecy::SecretString;

use super::SimArgs;
use super::print::say;
use super::worker::stop_signal;
use crate::sim::{SimOptions, Simulator};

pub(super) async fn sim(args: SimArgs) -> anyhow::Result<ExitCode> {
    let made = args.key.is_none();
    let key = args.key.unwrap_or_else(new_key);
    let stop = stop_signal()?;
    let simulator = Simulator::start(SimOptions {
        listen: args.listen,
        root: args.root,
        key: SecretString::from(key.clone()),
        boxes: args.boxes,
        allow_remote: args.allow_remote,
    })
    .await?;
    eprintln!("boxrun: simulating a box provider; it runs whatever it is sent, as this user. To use it:");
    say!("export BOX_API_URL={}", simulator.url());
    if made {
        say!("export BOX_API_KEY={key}");
    }
    stop.cancelled().await;
    simulator.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// A key that nobody can guess: 122 random bits.
pub(super) fn new_key() -> String {
    format!("sim-{}", uuid::Uuid::new_v4().simple())
}
