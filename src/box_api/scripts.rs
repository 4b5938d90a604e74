//! The sh scripts that run on a box: written here, run by whatever `sh` the box has (dash, bash and busybox are tested).
//!
//! They answer in marker lines that [`answers`](super::answers) reads. Nothing of a user's text stands in a script as it is:
//! command, working directory and environment travel as base64, so that no byte of them means anything to the shell and a
//! provider's log shows no value in plain. Which marker stands in which script is fixed (see the tests below), because a
//! box server tells the requests apart by them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::operation::Operation;
use crate::ids::RunId;

/// How long a command has between TERM and KILL.
pub const STOP_GRACE: Duration = Duration::from_secs(5);

/// A script and how long it may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    pub operation: Operation,
    pub text: String,
    /// What the provider is told to allow the script, in whole seconds.
    pub timeout: Duration,
    /// The total deadline of the HTTP call, longer than `timeout`.
    pub call_timeout: Duration,
}

/// Where a run lives on its box, and which run it is.
#[derive(Debug, Clone, Copy)]
pub struct RunPlace<'a> {
    pub run_id: RunId,
    /// Begins with a literal `$HOME`, which the box expands; made of `[A-Za-z0-9_/.$-]` only.
    pub run_directory: &'a str,
}

/// What is started, and how.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Run as `sh script.sh`, byte for byte.
    pub command: &'a str,
    /// Absolute, or relative to `$HOME`; where the provider starts commands when there is none.
    pub cwd: Option<&'a str>,
    /// Names without `=`, values without NUL: checked at admission.
    pub env: &'a BTreeMap<String, String>,
    /// As `env`, but kept out of every list of processes.
    pub secret_env: &'a [(&'a str, &'a str)],
    /// For git over HTTP.
    pub git: Option<GitLogin<'a>>,
    /// After so long the box ends the command by itself, should no worker be left to do it.
    pub watchdog: Duration,
}

/// A password for git, as its own `store` helper keeps it.
#[derive(Debug, Clone, Copy)]
pub struct GitLogin<'a> {
    /// A line of its file: `https://user:password@host`, percent-encoded.
    pub credential: &'a str,
    /// Whom it is for: `https://host`.
    pub url: &'a str,
}

/// Starts the run, unless its directory or a tombstone is there.
#[must_use]
pub fn dispatch(place: &RunPlace, launch: &Launch) -> Script {
    let mut settings = place_settings(place);
    let _ = writeln!(settings, "oa_script={}", STANDARD.encode(launch.command));
    let _ = writeln!(settings, "oa_script_bytes={}", launch.command.len());
    let _ = writeln!(settings, "oa_cwd={}", STANDARD.encode(launch.cwd.unwrap_or_default()));
    let git = launch.git.map_or((String::new(), String::new()), |git| {
        (
            STANDARD.encode(format!("{}\n", git.credential)),
            STANDARD.encode(git.url),
        )
    });
    let _ = writeln!(settings, "oa_credential={}\noa_git_url={}", git.0, git.1);
    let text = render(settings, include_str!("scripts/dispatch.sh"), &wrapper(place, launch));
    Script {
        operation: Operation::Dispatch,
        text,
        timeout: Duration::from_secs(15),
        call_timeout: Duration::from_secs(20),
    }
}

/// Asks whether the box has the run; where it has not, makes sure that it never will.
#[must_use]
pub fn probe(place: &RunPlace) -> Script {
    patient(
        Operation::Probe,
        render(place_settings(place), include_str!("scripts/probe.sh"), ""),
    )
}

/// Reads state and log, the log from byte `offset` on and at most `max_bytes` of it.
#[must_use]
pub fn poll(place: &RunPlace, offset: u64, max_bytes: u64) -> Script {
    let settings = place_settings(place) + &window_settings(offset, max_bytes);
    patient(Operation::Poll, render(settings, include_str!("scripts/poll.sh"), ""))
}

/// Kills the run, and reads on in its log as [`poll`] does. `grace` counts in whole seconds and leaves room in 30 s.
#[must_use]
pub fn stop(place: &RunPlace, offset: u64, max_bytes: u64, grace: Duration) -> Script {
    let mut settings = place_settings(place) + &window_settings(offset, max_bytes);
    let _ = writeln!(settings, "grace={}", grace.as_secs());
    patient(Operation::Stop, render(settings, include_str!("scripts/stop.sh"), ""))
}

/// Kills what survived the run's end and removes its directory.
#[must_use]
pub fn cleanup(place: &RunPlace) -> Script {
    let mut settings = place_settings(place);
    let _ = writeln!(settings, "grace={}", STOP_GRACE.as_secs());
    patient(
        Operation::Cleanup,
        render(settings, include_str!("scripts/cleanup.sh"), ""),
    )
}

fn patient(operation: Operation, text: String) -> Script {
    Script {
        operation,
        text,
        timeout: Duration::from_secs(30),
        call_timeout: Duration::from_secs(40),
    }
}

fn place_settings(place: &RunPlace) -> String {
    debug_assert!(
        place
            .run_directory
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_/.$-".contains(&byte)),
        "a run directory that the shell would not take literally: {:?}",
        place.run_directory
    );
    format!("oa_run={}\noa_dir=\"{}\"\n", place.run_id, place.run_directory)
}

/// Capped, for the shells count in `i64`.
fn window_settings(offset: u64, max_bytes: u64) -> String {
    let cap = i64::MAX.unsigned_abs() - 1;
    format!("offset={}\nmax_bytes={}\n", offset.min(cap), max_bytes.min(cap))
}

fn wrapper(place: &RunPlace, launch: &Launch) -> String {
    let settings = format!("oa_run={}\noa_watchdog={}\n", place.run_id, launch.watchdog.as_secs());
    let mut environment = String::new();
    for (name, value) in launch.env {
        // The dot keeps newlines at a value's end, which the substitution would drop.
        let word = STANDARD.encode(format!("{name}={value}."));
        let _ = writeln!(
            environment,
            "oa_word=$(printf %s {word} | base64 -d); set -- \"$@\" \"${{oa_word%.}}\""
        );
    }
    let mut secrets = String::new();
    for (name, value) in launch.secret_env {
        let word = STANDARD.encode(format!("{value}."));
        let _ = writeln!(
            secrets,
            "oa_word=$(printf %s {word} | base64 -d); export {name}=\"${{oa_word%.}}\""
        );
    }
    if launch.git.is_some() {
        secrets.push_str("export GIT_CONFIG_GLOBAL=\"$oa_dir/gitconfig\"\n");
    }
    let text = include_str!("scripts/wrapper.sh");
    settings
        + &text
            .replace("#environment\n", &environment)
            .replace("#secrets\n", &secrets)
}

/// Puts the fragments in their places and leaves comments and blank lines at home.
fn render(settings: String, body: &str, wrapper: &str) -> String {
    let mut text = settings;
    push_lines(&mut text, body, wrapper);
    text
}

fn push_lines(text: &mut String, body: &str, wrapper: &str) {
    for line in body.lines() {
        if let Some(name) = line.strip_prefix("#include ") {
            push_lines(text, fragment(name, wrapper), "");
        } else if !line.trim_start().starts_with('#') && !line.trim().is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
}

fn fragment<'a>(name: &str, wrapper: &'a str) -> &'a str {
    match name {
        "wrapper" => wrapper,
        "process" => include_str!("scripts/process.sh"),
        "kill" => include_str!("scripts/kill.sh"),
        "wrapper_last" => include_str!("scripts/wrapper_last.sh"),
        "tombstone" => include_str!("scripts/tombstone.sh"),
        "log" => include_str!("scripts/log.sh"),
        unknown => unreachable!("a script includes {unknown:?}, which is no fragment"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: &str = "$HOME/.openagents/box-runs/users/u1/0192d3a4-0000-7000-8000-000000000001";

    fn place() -> RunPlace<'static> {
        RunPlace {
            run_id: "0192d3a4-0000-7000-8000-000000000001".parse().unwrap(),
            run_directory: DIRECTORY,
        }
    }

    fn all() -> [(&'static str, Script); 5] {
        let env = BTreeMap::from([("NAME".to_owned(), "OA_CANCELLED=1".to_owned())]);
        let launch = Launch {
            command: "echo OA_SIZE=1 OA_PRESENT=1",
            cwd: Some("OA_PID=1"),
            env: &env,
            secret_env: &[],
            git: None,
            watchdog: Duration::from_secs(60),
        };
        [
            ("dispatch", dispatch(&place(), &launch)),
            ("probe", probe(&place())),
            ("poll", poll(&place(), 7, 1024)),
            ("stop", stop(&place(), 7, 1024, STOP_GRACE)),
            ("cleanup", cleanup(&place())),
        ]
    }

    #[test]
    fn each_marker_stands_only_in_its_own_scripts() {
        let rules: [(&str, &[&str]); 8] = [
            ("OPENAGENTS_RUN_EXISTS", &["dispatch"]),
            ("setsid", &["dispatch"]),
            ("OA_REFUSED", &["dispatch"]),
            ("OA_PID", &["probe"]),
            ("OA_PRESENT", &["probe", "poll", "stop"]),
            ("OA_SIZE", &["poll", "stop"]),
            ("OA_CANCELLED", &["stop"]),
            ("OA_REMOVED", &["cleanup"]),
        ];
        for (marker, scripts) in rules {
            for (name, script) in all() {
                assert_eq!(
                    script.text.contains(marker),
                    scripts.contains(&name),
                    "{marker} in {name}:\n{}",
                    script.text
                );
            }
        }
    }

    #[test]
    fn every_script_names_the_run_directory_and_the_run() {
        for (name, script) in all() {
            assert!(script.text.contains(DIRECTORY), "{name}");
            assert!(
                script.text.contains("oa_run=0192d3a4-0000-7000-8000-000000000001\n"),
                "{name}"
            );
        }
    }

    #[test]
    fn a_kill_request_removes_the_credentials_before_anything_else() {
        for (name, script) in all().into_iter().skip(3) {
            let first = script.text.lines().find(|line| !line.contains('=')).unwrap();
            assert!(
                first.starts_with("rm -f ") && first.contains("forge-credential") && first.contains("gitconfig"),
                "{name}: {first}"
            );
        }
    }

    #[test]
    fn the_offset_has_a_line_of_its_own() {
        for (name, script) in all().into_iter().skip(2).take(2) {
            assert!(script.text.lines().any(|line| line == "offset=7"), "{name}");
        }
        let text = poll(&place(), u64::MAX, u64::MAX).text;
        assert!(text.contains("offset=9223372036854775806\nmax_bytes=9223372036854775806\n"));
    }

    #[test]
    fn a_call_outlasts_its_script() {
        for (name, script) in all() {
            let expected = if name == "dispatch" { (15, 20) } else { (30, 40) };
            assert_eq!(
                (script.timeout.as_secs(), script.call_timeout.as_secs()),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_sent_has_no_comments_and_no_directives() {
        for (name, script) in all() {
            assert!(
                !script.text.lines().any(|line| line.trim_start().starts_with('#')),
                "{name}"
            );
            assert!(script.text.len() < 16 * 1024, "{name} has {} bytes", script.text.len());
        }
    }
}
