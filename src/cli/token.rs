//! `boxrun token`: who may use the HTTP API.

use std::process::ExitCode;

use crate::runs::view::rfc3339;
use crate::schema;
use crate::web::tokens::{self, Scope};

use super::desk::Desk;
use super::overview::table;
use super::print::say;
use super::{EXIT_FAILED, TokenCommand};

pub(super) async fn token(command: TokenCommand) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    schema::check(&desk.pool).await?;
    match command {
        TokenCommand::Create {
            principal,
            scopes,
            expires,
            json,
        } => {
            let scopes = if scopes.is_empty() {
                Scope::DEFAULT.to_vec()
            } else {
                scopes
            };
            let seconds = expires.map(|duration| duration.as_secs());
            let made = tokens::create(&desk.pool, &principal, &scopes, seconds).await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&made)?);
            } else {
                say!("{}", made.token);
                let scopes: Vec<_> = made.scopes.iter().map(ToString::to_string).collect();
                let until = made.expires_at.map_or_else(
                    || "until it is revoked".to_owned(),
                    |at| format!("until {}", rfc3339(at)),
                );
                eprintln!(
                    "boxrun: token {} of {} for {}, {until}; its text is not shown again",
                    made.id,
                    made.principal,
                    scopes.join(", ")
                );
            }
        }
        TokenCommand::Ls { json } => {
            let all = tokens::list(&desk.pool).await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&all)?);
            } else if all.is_empty() {
                eprintln!("boxrun: there is no token yet; `boxrun token create --principal user:ID` makes one");
            } else {
                let mut table = table(&["ID", "PRINCIPAL", "SCOPES", "MADE", "VALID"]);
                for token in all {
                    let ends = match (token.revoked_at, token.expires_at) {
                        (Some(at), _) => format!("revoked {}", rfc3339(at)),
                        (None, Some(at)) if token.valid => format!("until {}", rfc3339(at)),
                        (None, Some(at)) => format!("expired {}", rfc3339(at)),
                        (None, None) => "until revoked".to_owned(),
                    };
                    table.add_row([
                        token.id.to_string(),
                        token.principal,
                        token.scopes.join(" "),
                        rfc3339(token.created_at),
                        ends,
                    ]);
                }
                say!("{table}");
            }
        }
        TokenCommand::Revoke { id } => {
            if !tokens::revoke(&desk.pool, id).await? {
                eprintln!("boxrun: there is no token {id}; `boxrun token ls` lists them");
                return Ok(ExitCode::from(EXIT_FAILED));
            }
            eprintln!("boxrun: token {id} is revoked");
        }
    }
    Ok(ExitCode::SUCCESS)
}
