//! Calls to a box on behalf of a run, with their failures put into the domain's words.

use crate::box_api::answers::Printed;
use crate::box_api::{BoxError, BoxErrorCode, CommandOutput, Effect as BoxEffect, Script};
use crate::runs::Run;
use crate::runs::decide::{CallFailure, Effect, Fault};

use super::Context;

/// Sends a script that may be sent again (probe, poll, stop, cleanup). That a box is not found counts only once the
/// provider confirms it.
pub(super) async fn ask(context: &Context, run: &Run, script: &Script) -> Result<CommandOutput, CallFailure> {
    if let Some(held) = context.throttle.held() {
        return Err(held);
    }
    let answer = context.client.run_command(&run.box_id, script).await;
    match answer {
        Ok(output) => Ok(output),
        Err(error) if error.code == BoxErrorCode::BoxNotFound => {
            let confirmed = context.client.get_box(&run.box_id).await;
            match confirmed {
                Err(confirmation) if confirmation.code == BoxErrorCode::BoxNotFound => Err(failure(error)),
                Ok(_) | Err(_) => {
                    let mut failure = failure(error);
                    failure.effect = Effect::MayHaveRun;
                    Err(failure)
                }
            }
        }
        Err(error) => {
            let failure = failure(error);
            context.throttle.notice(&context.pool.get(), &failure).await;
            Err(failure)
        }
    }
}

/// Sends a dispatch: once, over a connection of its own, and never again whatever comes back.
pub(super) async fn dispatch(context: &Context, run: &Run, script: &Script) -> Result<CommandOutput, CallFailure> {
    let sent = context.client.run_command_on_new_connection(&run.box_id, script).await;
    match sent {
        Ok(output) => Ok(output),
        Err(error) => {
            let failure = failure(error);
            context.throttle.notice(&context.pool.get(), &failure).await;
            Err(failure)
        }
    }
}

/// The provider's error in the domain's words.
pub(super) fn failure(error: BoxError) -> CallFailure {
    let effect = match error.effect {
        BoxEffect::MaySendAgain => Effect::MaySendAgain,
        BoxEffect::DidNotRun => Effect::DidNotRun,
        BoxEffect::MayHaveRun => Effect::MayHaveRun,
    };
    CallFailure {
        effect,
        fault: Fault {
            code: error.code.as_str(),
            text: error.detail,
            retry_after: error.retry_after,
        },
    }
}

pub(super) fn printed(output: &CommandOutput) -> Printed<'_> {
    Printed {
        stdout: &output.stdout,
        exit_code: output.exit_code,
        stdout_truncated: output.stdout_truncated,
    }
}
