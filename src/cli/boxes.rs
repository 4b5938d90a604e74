//! `boxrun box`: which boxes belong to which conversation.

use std::process::ExitCode;

use comfy_table::{Table, presets};

use super::BoxCommand;
use super::place::Place;
use super::print::say;
use crate::runs::view::rfc3339;

pub(super) async fn boxes(command: BoxCommand) -> anyhow::Result<ExitCode> {
    let place = Place::open().await?;
    match command {
        BoxCommand::Attach { box_id, conversation } => {
            let conversation = conversation.unwrap_or_else(|| place.default_conversation());
            place.attach(conversation, &box_id).await?;
            eprintln!("boxrun: {box_id} is attached to conversation {conversation}");
        }
        BoxCommand::Detach { box_id } => {
            place.detach(&box_id).await?;
            eprintln!("boxrun: {box_id} is detached");
        }
        BoxCommand::Ls { json } => {
            let boxes = place.boxes().await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&boxes)?);
            } else if boxes.is_empty() {
                eprintln!(
                    "boxrun: {} has no boxes; attach one with `boxrun box attach BOX`",
                    place.principal()
                );
            } else {
                let mut table = Table::new();
                table
                    .load_style(presets::NOTHING)
                    .set_header(["BOX", "CONVERSATION", "ATTACHED"]);
                for attached in boxes {
                    table.add_row([
                        attached.id.to_string(),
                        attached.conversation_id.to_string(),
                        attached.attached_at.map(rfc3339).unwrap_or_default(),
                    ]);
                }
                say!("{table}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
