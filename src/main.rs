//! The command `boxrun`: reads the subcommand and hands it to `boxrun::cli`.

use std::process::ExitCode;

use boxrun::cli;
use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    cli::run(cli::Cli::parse()).await
}
