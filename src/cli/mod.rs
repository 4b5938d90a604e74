//! The command line: one file a subcommand. What they print for programs (`--json`, exit status, output on stdout) is
//! stable; what they print for people is not.

mod boxes;
mod desk;
mod doctor;
mod follow;
mod generated;
mod logging;
mod migrate;
mod operator;
mod overview;
mod place;
mod print;
mod provider;
mod remote;
mod run;
mod runs;
mod sim;
mod token;
mod up;
mod web;
pub mod with_postgres;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::{Principal, RunState};
use crate::web::tokens::Scope;

/// Exit status when the run is lost or refused, or boxrun itself failed.
const EXIT_FAILED: u8 = 125;

/// Runs long shell commands detached on remote boxes and follows each one durably until it ends.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring everything up on this machine: PostgreSQL, simulator, one worker, a first run. Ctrl-C stops it all.
    Up(UpArgs),
    /// Drive runs: dispatch, poll, stop and clean up, until SIGTERM. Any number of these work side by side.
    Worker,
    /// Serve the HTTP API, until SIGTERM. Any number of these work side by side.
    Web,
    /// Bring the database schema up to date.
    Migrate {
        /// Also make the roles boxrun_app, boxrun_web and boxrun_worker, and grant each what it needs.
        #[arg(long)]
        roles: bool,
    },
    /// Serve a local box provider that really runs commands, on this machine.
    Sim(SimArgs),
    /// Attach boxes to conversations.
    #[command(subcommand)]
    Box(BoxCommand),
    /// Run a command on a box and follow its output; exits with the command's status.
    Run(RunArgs),
    /// List runs, newest first.
    Ls(LsArgs),
    /// Show one run and its timeline.
    Show {
        /// A run's id, as `boxrun ls` prints it.
        run: RunId,
        #[arg(long)]
        json: bool,
    },
    /// Print the output of a run.
    Logs {
        /// A run's id, as `boxrun ls` prints it.
        run: RunId,
        /// Go on until the run has ended.
        #[arg(short, long)]
        follow: bool,
        /// From this byte of the output on.
        #[arg(long, default_value_t = 0)]
        offset: i64,
        /// One JSON object with the output and its offsets.
        #[arg(long, conflicts_with = "follow")]
        json: bool,
    },
    /// Ask a run to end.
    Cancel {
        /// A run's id, as `boxrun ls` prints it.
        run: RunId,
        /// Wait until it has ended.
        #[arg(long)]
        wait: bool,
        #[arg(long)]
        json: bool,
    },
    /// Tokens for the HTTP API.
    #[command(subcommand)]
    Token(TokenCommand),
    /// The provider that this database belongs to.
    #[command(subcommand)]
    Provider(ProviderCommand),
    #[command(flatten)]
    Operator(operator::OperatorCommand),
    /// Run a command with a temporary PostgreSQL in DATABASE_URL, which goes when the command ends. It has no schema yet:
    /// `boxrun migrate` makes it.
    Postgres {
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct UpArgs {
    /// Only the first run (its output on stdout), then stop everything.
    #[arg(long)]
    once: bool,
    /// Where database and boxes are kept.
    #[arg(long, value_name = "DIR", default_value = ".boxrun")]
    data: PathBuf,
    /// Use the database and the provider that DATABASE_URL, BOX_API_URL and BOX_API_KEY name, instead of local ones.
    #[arg(long)]
    use_environment: bool,
    /// With --use-environment: the box of the first run.
    #[arg(long = "box", env = "BOXRUN_BOX", value_name = "BOX")]
    box_id: Option<BoxId>,
}

#[derive(Debug, Args)]
struct SimArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    listen: std::net::SocketAddr,
    /// Where the boxes' files are kept.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// The key that callers must send; one is made and printed when none is given.
    #[arg(long, env = "BOX_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// A box that exists; without any, every valid box id does.
    #[arg(long = "box", value_name = "ID")]
    boxes: Vec<BoxId>,
    /// Listen beyond this machine. It runs whatever it is sent: think twice.
    #[arg(long)]
    allow_remote: bool,
}

#[derive(Debug, Subcommand)]
enum BoxCommand {
    /// Attach a box to a conversation.
    Attach {
        #[arg(value_name = "BOX")]
        box_id: BoxId,
        /// Without it: your default conversation.
        #[arg(long, value_name = "UUID")]
        conversation: Option<ConversationId>,
    },
    /// Detach a box from its conversation; refused while a run is active on it.
    Detach {
        #[arg(value_name = "BOX")]
        box_id: BoxId,
    },
    /// List your boxes.
    Ls {
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The box to run it on; one that has no conversation is attached to yours.
    #[arg(long = "box", env = "BOXRUN_BOX", value_name = "BOX")]
    box_id: BoxId,
    /// Without it: the conversation that has the box, or else your default one.
    #[arg(long, value_name = "UUID")]
    conversation: Option<ConversationId>,
    /// The same key, box and command is the same run; without it every call is a run of its own.
    #[arg(long)]
    key: Option<String>,
    /// End it after this long: 90 (seconds), 10m, 1h; default and limit is BOXRUN_MAX_DURATION_SECONDS.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    max_duration: Option<Duration>,
    /// Where to run it: absolute, or relative to the box's home.
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Added to its environment; shown to everybody who may see the run.
    #[arg(long, value_name = "K=V", value_parser = parse_env)]
    env: Vec<(String, String)>,
    /// Don't follow it: print its id and return.
    #[arg(long)]
    detach: bool,
    /// One JSON object for the run (with --detach: as admitted, else as ended) instead of its output.
    #[arg(long)]
    json: bool,
    /// One argument is shell text; several are quoted and joined.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct LsArgs {
    /// Only runs in this state: admitted, dispatched, running, completed, failed, cancelled, timed_out, lost.
    #[arg(long)]
    state: Option<RunState>,
    /// Runs of everybody, not only yours.
    #[arg(long)]
    all: bool,
    /// At most this many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token. Its text is printed now and never again.
    Create {
        /// Whom it stands for, for example user:42.
        #[arg(long, value_name = "TYPE:ID", value_parser = parse_principal)]
        principal: Principal,
        /// What it allows, instead of runs:read and runs:write. boxes:write may claim any box of the provider's account;
        /// act-as may ask for everybody.
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<Scope>,
        /// How long it is good for, for example 30d; without it until it is revoked.
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        expires: Option<Duration>,
        #[arg(long)]
        json: bool,
    },
    /// List all tokens, without their texts.
    Ls {
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token: from the next request on it is refused.
    Revoke {
        /// As `boxrun token ls` prints it.
        id: uuid::Uuid,
    },
}

#[derive(Debug, Subcommand)]
enum ProviderCommand {
    /// Make this database belong to another provider.
    Set { url: url::Url },
}

/// Runs a subcommand and says how the process should exit.
pub async fn run(cli: Cli) -> ExitCode {
    logging::start(match cli.command {
        // Servers tell what they do; in front of a person only what is wrong is said.
        Command::Worker | Command::Web | Command::Sim(_) => "info,sqlx::postgres::notice=warn",
        _ => "warn",
    });
    let done = match cli.command {
        Command::Up(args) => up::up(args).await,
        Command::Worker => worker::worker().await,
        Command::Web => web::web().await,
        Command::Token(command) => token::token(command).await,
        Command::Migrate { roles } => migrate::migrate(roles).await,
        Command::Sim(args) => sim::sim(args).await,
        Command::Box(command) => boxes::boxes(command).await,
        Command::Run(args) => run::run(args).await,
        Command::Ls(args) => runs::ls(args).await,
        Command::Show { run, json } => runs::show(run, json).await,
        Command::Logs {
            run,
            follow,
            offset,
            json,
        } => runs::logs(run, follow, offset, json).await,
        Command::Cancel { run, wait, json } => runs::cancel(run, wait, json).await,
        Command::Provider(ProviderCommand::Set { url }) => provider::set(&url).await,
        Command::Operator(command) => operator::operate(command).await,
        Command::Postgres { command } => with_postgres::with_postgres(command).await,
    };
    done.unwrap_or_else(|error| {
        eprintln!("boxrun: {}", chain(&error));
        ExitCode::from(EXIT_FAILED)
    })
}

/// An error with its causes, each said once.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            if !text.is_empty() {
                text += ": ";
            }
            text += &cause;
        }
    }
    text
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err("a duration is a whole number with s, m, h or d, for example 10m".to_owned()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a duration is a whole number with s, m, h or d, for example 10m")?;
    number
        .checked_mul(factor)
        .map(Duration::from_secs)
        .ok_or_else(|| "that is longer than can be counted".to_owned())
}

fn parse_principal(text: &str) -> Result<Principal, &'static str> {
    crate::web::parse_principal(text)
        .ok_or("write it as TYPE:ID, for example user:42; TYPE has 1 to 64 bytes, ID 1 to 256")
}

fn parse_env(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in [
            "",
            "m",
            "1.5h",
            "-1s",
            "10 m",
            "10x",
            "99999999999999999999d",
            "9999999999999999999d",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
