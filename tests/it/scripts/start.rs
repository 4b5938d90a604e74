//! Dispatch and probe: at most once, byte for byte, and a clear word when it can't be.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use boxrun::box_api::answers::{DispatchAnswer, PollAnswer, ProbeAnswer};
use boxrun::box_api::scripts::Launch;

use super::processes::Process;
use super::sandbox::Sandbox;
use super::under_each_shell;
use crate::support::wait::wait_until_blocking;

under_each_shell!(
    a_command_arrives_byte_for_byte,
    a_command_of_any_text_prints_what_sh_prints,
    the_exit_is_recorded_whatever_the_command_does,
    the_pid_answered_is_the_wrappers,
    the_environment_is_the_boxes_own_and_the_runs,
    environment_values_arrive_byte_for_byte,
    a_command_runs_where_it_is_told_to,
    a_missing_working_directory_is_refused,
    our_files_are_private_and_the_commands_are_not,
    a_second_dispatch_starts_nothing,
    a_probe_of_nothing_keeps_a_late_dispatch_from_starting,
    a_probe_finds_a_run_and_its_pid,
    a_directory_that_cannot_be_made_is_refused,
    a_missing_tool_is_refused_and_never_starts,
    a_home_that_is_not_set_is_refused,
    a_wrapper_that_finds_its_launch_taken_runs_nothing,
    a_dispatch_cut_anywhere_starts_nothing,
);

fn refused(what: &str) -> DispatchAnswer {
    DispatchAnswer::Refused { what: what.to_owned() }
}

fn a_command_arrives_byte_for_byte(sandbox: &Sandbox) {
    let command =
        "exit 0 # it's \"$HOME\" `id` $(id) \\\\ \r\ncat <<'EOF'\n\tOA_SIZE=1\nEOF\n'unclosed \u{1F980} %s \\";
    sandbox.start(command);
    assert_eq!(sandbox.poll_until_exit().exit, Some(0));
    assert_eq!(sandbox.read("script.sh"), command);
}

fn a_command_of_any_text_prints_what_sh_prints(sandbox: &Sandbox) {
    let crabs = "\u{1F980}".repeat((8000 - "printf %s ''".len()) / 4);
    let commands = [
        "echo \"a  b\" 'c\"d' $((1+1)) `echo e` \\f".to_owned(),
        "cat <<EOF\nhere $((2+3))\nEOF\ncat <<'EOF'\n$HOME `x`\nEOF".to_owned(),
        "printf '%s\\n' one\\\n two".to_owned(),
        "printf x\\\\".to_owned(),
        "printf '[%s]' a\r\nprintf '[%s]' b\r\n".to_owned(),
        "printf '\\001\\377\\000'".to_owned(),
        format!("printf %s '{crabs}'"),
    ];
    for command in commands {
        let sandbox = sandbox.another();
        let expected = sandbox.shell().arg("-c").arg(&command).output().unwrap();
        sandbox.start(&command);
        let report = sandbox.poll_until_exit();
        assert_eq!((report.data, report.exit), (expected.stdout, Some(0)), "{command}");
    }
}

fn the_exit_is_recorded_whatever_the_command_does(sandbox: &Sandbox) {
    let table = [
        ("set -e\nfalse\necho not here", 1),
        ("exit 3", 3),
        ("exit 255", 255),
        ("exec sleep 0", 0),
        ("exec sh -c 'exit 9'", 9),
        ("trap 'kill 0' EXIT", 143),
        ("kill 0", 143),
        ("kill -KILL 0", 137),
        ("kill -KILL $$", 137),
        ("trap '' TERM; kill -TERM 0; exit 4", 4),
        ("kill -TERM $PPID; kill -USR1 $PPID; sleep 0.2; exit 6", 6),
        ("exec </dev/null >/dev/null 2>&1; exit 7", 7),
        ("no-such-command-at-all", 127),
        ("if", 2),
        ("sleep 600 & exit 5", 5),
    ];
    for (command, expected) in table {
        let sandbox = sandbox.another();
        sandbox.start(command);
        let report = sandbox.poll_until_exit();
        assert_eq!(
            report.exit,
            Some(expected),
            "{command}: {}",
            String::from_utf8_lossy(&report.data)
        );
        assert!(!report.killed, "{command}");
    }
}

fn the_pid_answered_is_the_wrappers(sandbox: &Sandbox) {
    let pid = sandbox.start("while [ ! -e $HOME/go ]; do sleep 0.1; done");
    assert!(sandbox.read("pid").starts_with(&format!("{pid} ")));
    assert!(sandbox.poll().alive);
    let wrapper = Process::of(pid).unwrap();
    fs::write(sandbox.home().join("go"), "").unwrap();
    sandbox.poll_until_exit();
    wait_until_blocking("the wrapper is gone", || wrapper.lives(), |lives| !lives);
    assert!(!sandbox.poll().alive);
}

fn the_environment_is_the_boxes_own_and_the_runs(sandbox: &Sandbox) {
    sandbox.start("env");
    let report = sandbox.poll_until_exit();
    let plain = sandbox.shell().arg("-c").arg("sh -c env").output().unwrap();
    let names = |text: &[u8]| -> Vec<String> {
        let mut lines: Vec<String> = String::from_utf8_lossy(text).lines().map(str::to_owned).collect();
        lines.retain(|line| {
            !["_=", "SHLVL=", "OLDPWD=", "PWD="]
                .iter()
                .any(|shells_own| line.starts_with(shells_own))
        });
        lines.sort();
        lines
    };
    let mut expected = names(&plain.stdout);
    expected.push(sandbox.mark());
    expected.sort();
    assert_eq!(names(&report.data), expected);
}

fn environment_values_arrive_byte_for_byte(sandbox: &Sandbox) {
    let values = [
        "",
        " ",
        "it's \"$HOME\" `id`",
        "two\nlines\n\n",
        "\\",
        "\\n",
        "\u{1F980}\r",
        "a=b",
        "-n",
        "'",
    ];
    let mut env: BTreeMap<String, String> = values
        .iter()
        .enumerate()
        .map(|(index, value)| (format!("V{index}"), (*value).to_owned()))
        .collect();
    env.insert("UID".to_owned(), "readonly in bash".to_owned());
    env.insert("PATH".to_owned(), "/nowhere".to_owned());
    env.insert("BOXRUN_RUN_ID".to_owned(), "not this".to_owned());
    let command = "while read -r line; do :; done </dev/null; exec /bin/cat /proc/self/environ";
    let launch = Launch {
        command,
        cwd: None,
        env: &env,
        watchdog: Duration::from_secs(600),
        secret_env: &[],
        git: None,
    };
    assert!(matches!(sandbox.launch(&launch), DispatchAnswer::Started { .. }));
    let report = sandbox.poll_until_exit();
    let seen: Vec<String> = report
        .data
        .split(|byte| *byte == 0)
        .map(|entry| String::from_utf8_lossy(entry).into_owned())
        .collect();
    env.remove("BOXRUN_RUN_ID");
    // bash sets UID itself and does not pass the one given on.
    env.remove("UID");
    for (name, value) in &env {
        assert!(
            seen.contains(&format!("{name}={value}")),
            "{name}={value:?} is not in {seen:?}"
        );
    }
    assert!(seen.contains(&sandbox.mark()));
}

fn a_command_runs_where_it_is_told_to(sandbox: &Sandbox) {
    let folder = "it's a  folder\n";
    for (cwd, inside_home) in [(None, None), (Some(folder), Some(folder)), (Some("/"), None)] {
        let sandbox = sandbox.another();
        fs::create_dir(sandbox.home().join(folder)).unwrap();
        let env = BTreeMap::new();
        let launch = Launch {
            command: "exec readlink /proc/self/cwd",
            cwd,
            env: &env,
            watchdog: Duration::from_secs(600),
            secret_env: &[],
            git: None,
        };
        assert!(matches!(sandbox.launch(&launch), DispatchAnswer::Started { .. }));
        let expected = match (cwd, inside_home) {
            (None, _) => sandbox.home().parent().unwrap().to_path_buf(),
            (Some(_), Some(name)) => sandbox.home().join(name),
            (Some(cwd), None) => cwd.into(),
        };
        let report = sandbox.poll_until_exit();
        assert_eq!(
            String::from_utf8_lossy(&report.data),
            format!("{}\n", expected.display())
        );
    }
}

fn a_missing_working_directory_is_refused(sandbox: &Sandbox) {
    fs::write(sandbox.home().join("file"), "").unwrap();
    let env = BTreeMap::new();
    let launch = |cwd| Launch {
        command: "touch $HOME/ran",
        cwd: Some(cwd),
        env: &env,
        watchdog: Duration::from_secs(600),
        secret_env: &[],
        git: None,
    };
    assert_eq!(sandbox.launch(&launch("file")), refused("cwd"));
    assert!(sandbox.poll().never_started);
    assert_eq!(
        sandbox.launch(&launch("/")),
        DispatchAnswer::AlreadyThere,
        "what was refused is not started later"
    );
    let other = sandbox.another();
    assert_eq!(other.launch(&launch("/no/such/folder")), refused("cwd"));
    assert!(!sandbox.home().join("ran").exists() && !other.home().join("ran").exists());
}

fn our_files_are_private_and_the_commands_are_not(sandbox: &Sandbox) {
    sandbox.start("touch $HOME/made; mkdir $HOME/folder");
    sandbox.poll_until_exit();
    let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["script.sh", "output.log", "pid", "command", "exit-code"] {
        assert_eq!(mode(sandbox.file(name)), 0o600, "{name}");
    }
    for name in ["", "launch", ".."] {
        assert_eq!(mode(sandbox.file(name)), 0o700, "{name}");
    }
    let output = sandbox.shell().arg("-c").arg("umask").output().unwrap();
    let umask = u32::from_str_radix(String::from_utf8_lossy(&output.stdout).trim(), 8).unwrap();
    assert_eq!(mode(sandbox.home().join("made")), 0o666 & !umask);
    assert_eq!(mode(sandbox.home().join("folder")), 0o777 & !umask);
}

fn a_second_dispatch_starts_nothing(sandbox: &Sandbox) {
    let command = "echo once >>$HOME/ran";
    sandbox.start(command);
    assert_eq!(sandbox.dispatch(command), DispatchAnswer::AlreadyThere);
    sandbox.poll_until_exit();
    assert_eq!(sandbox.dispatch(command), DispatchAnswer::AlreadyThere);
    assert_eq!(fs::read_to_string(sandbox.home().join("ran")).unwrap(), "once\n");
}

fn a_probe_of_nothing_keeps_a_late_dispatch_from_starting(sandbox: &Sandbox) {
    assert_eq!(sandbox.probe(), ProbeAnswer::Absent);
    assert!(sandbox.file("").parent().unwrap().exists());
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::Tombstone);
    assert_eq!(sandbox.probe(), ProbeAnswer::Absent);
    assert_eq!(sandbox.poll_answer(0, 100), PollAnswer::Absent);
    assert!(!sandbox.home().join("ran").exists());
}

fn a_probe_finds_a_run_and_its_pid(sandbox: &Sandbox) {
    let pid = sandbox.start("exit 0");
    assert_eq!(
        sandbox.probe(),
        ProbeAnswer::Present {
            pid: Some(i64::from(pid))
        }
    );
    fs::remove_file(sandbox.file("pid")).unwrap();
    assert_eq!(sandbox.probe(), ProbeAnswer::Present { pid: None });
}

fn a_directory_that_cannot_be_made_is_refused(sandbox: &Sandbox) {
    fs::write(sandbox.home().join(".openagents"), "a file where a directory should be").unwrap();
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), refused("directory"));
    assert_eq!(
        sandbox.probe(),
        ProbeAnswer::Unclear,
        "without a tombstone an absence would be no promise"
    );
    assert!(!sandbox.home().join("ran").exists());
}

fn a_missing_tool_is_refused_and_never_starts(sandbox: &Sandbox) {
    fs::remove_file(sandbox.bin().join("nohup")).unwrap();
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), refused("nohup"));
    let report = sandbox.poll();
    assert!(report.never_started && !report.alive && report.exit.is_none());
}

fn a_home_that_is_not_set_is_refused(sandbox: &Sandbox) {
    let env = BTreeMap::new();
    let launch = Launch {
        command: "true",
        cwd: None,
        env: &env,
        watchdog: Duration::from_secs(600),
        secret_env: &[],
        git: None,
    };
    let script = boxrun::box_api::scripts::dispatch(&sandbox.place(), &launch);
    let mut command = sandbox.shell();
    let output = command.env_remove("HOME").arg("-c").arg(&script.text).output().unwrap();
    assert_eq!(output.status.code(), Some(74));
    assert!(String::from_utf8_lossy(&output.stdout).contains("OA_REFUSED=home"));
}

/// The lock inside the lock: a poll or a stop that takes a free `launch` can rely on it.
fn a_wrapper_that_finds_its_launch_taken_runs_nothing(sandbox: &Sandbox) {
    sandbox.before(
        "setsid",
        &format!("mkdir -p {}", sandbox.file("launch/never").display()),
    );
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::Unclear);
    assert!(sandbox.poll().never_started);
    assert!(!sandbox.home().join("ran").exists());
}

/// A body cut on its way must not start a wrapper that is half itself.
fn a_dispatch_cut_anywhere_starts_nothing(sandbox: &Sandbox) {
    let env = BTreeMap::new();
    let text = boxrun::box_api::scripts::dispatch(
        &sandbox.place(),
        &Launch {
            command: "touch $HOME/ran",
            cwd: None,
            env: &env,
            watchdog: Duration::from_secs(600),
            secret_env: &[],
            git: None,
        },
    )
    .text;
    let wrapper_begins = text.find("<<'BOXRUN_WRAPPER'").unwrap();
    let wrapper_ends = text.rfind("oa_main \"$@\"").unwrap();
    for step in 0..8 {
        let other = sandbox.another();
        let cut = wrapper_begins + (wrapper_ends - wrapper_begins) * step / 8;
        let mut command = sandbox.shell();
        command
            .env("HOME", other.home())
            .arg("-c")
            .arg(&text[..cut])
            .output()
            .unwrap();
        assert!(!other.home().join("ran").exists(), "cut at {cut}");
        assert!(
            !other
                .home()
                .join(sandbox.file("pid").strip_prefix(sandbox.home()).unwrap())
                .exists(),
            "cut at {cut}"
        );
    }
}
