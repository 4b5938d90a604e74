//! `boxrun completions` and `boxrun man`: made from the command line's own description.

use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, print};

const NAME: &str = "boxrun";

pub(super) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print::text(&String::from_utf8(script)?);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn man(subcommand: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command().name(NAME);
    command.build();
    let command = match subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name);
            let found = found.with_context(|| format!("there is no subcommand `{name}`; `boxrun help` lists them"))?;
            found.clone()
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    print::text(&String::from_utf8(page)?);
    Ok(ExitCode::SUCCESS)
}
