//! Many processes, and dead ones: what multiplies while it is killed, what nobody reaps, what goes on writing.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use boxrun::box_api::answers::{CleanupAnswer, StopAnswer};

use super::processes::Process;
use super::sandbox::Sandbox;
use super::under_each_shell;
use crate::support::wait::wait_until_blocking;

under_each_shell!(
    a_command_that_forks_during_the_kill_is_killed_to_the_last,
    a_tree_of_deaf_processes_is_killed_to_the_last,
    a_dead_process_that_nobody_reaps_is_dead,
    a_daemon_that_writes_on_does_not_keep_the_run_alive,
);

/// What of the box carries the run's mark.
fn marked(sandbox: &Sandbox) -> Vec<u32> {
    Process::all()
        .into_iter()
        .filter(|process| process.environment().contains(&sandbox.mark()) && process.lives())
        .map(|process| process.pid)
        .collect()
}

/// Each lives for an instant, leaves a child that does the same, and hears no TERM. The one with a session of its own lives
/// long enough to be seen once.
fn a_command_that_forks_during_the_kill_is_killed_to_the_last(sandbox: &Sandbox) {
    let relay = "trap '' TERM\n[ \"$1\" -lt 1000 ] || exit 0\nsleep $2\nsh \"$0\" $(($1 + 1)) $2 &\nexit 0";
    fs::write(sandbox.home().join("relay.sh"), relay).unwrap();
    sandbox.start(
        "trap '' TERM\nfor n in 1 2 3 4; do sh $HOME/relay.sh 0 0.05 & done\nsetsid sh $HOME/relay.sh 0 0.5 &\necho $$ >$HOME/command\nwhile :; do sleep 0.05; sh -c 'sleep 0.1' & done",
    );
    sandbox.pid_in("command");
    let answer = sandbox.stop_within(Duration::from_secs(1));
    assert!(
        matches!(answer, StopAnswer::Cancelled { exit: Some(137), .. }),
        "{answer:?}"
    );
    assert_eq!(marked(sandbox), [] as [u32; 0]);
}

fn a_tree_of_deaf_processes_is_killed_to_the_last(sandbox: &Sandbox) {
    let tree = "trap '' TERM\necho x >>$HOME/leaves\n[ \"$1\" -gt 0 ] && { sh \"$0\" $(($1 - 1)) & sh \"$0\" $(($1 - 1)) & }\nwhile :; do sleep 1; done";
    fs::write(sandbox.home().join("tree.sh"), tree).unwrap();
    sandbox.start("exec sh $HOME/tree.sh 4");
    let leaves = || fs::read_to_string(sandbox.home().join("leaves")).unwrap_or_default();
    wait_until_blocking("the tree has grown", leaves, |leaves| leaves.lines().count() == 31);
    let answer = sandbox.stop_within(Duration::from_secs(1));
    assert!(
        matches!(answer, StopAnswer::Cancelled { exit: Some(137), .. }),
        "{answer:?}"
    );
    assert_eq!(marked(sandbox), [] as [u32; 0]);
}

/// As in a container whose first process reaps nothing.
fn a_dead_process_that_nobody_reaps_is_dead(sandbox: &Sandbox) {
    fs::create_dir_all(sandbox.file("launch")).unwrap();
    let mut child = sandbox.command("/bin/cat");
    child.stdin(std::process::Stdio::piped()).process_group(0);
    let mut child = child.spawn().unwrap();
    let process = Process::of(child.id()).unwrap();
    drop(child.stdin.take());
    wait_until_blocking("it is dead", || process.lives(), |lives| !lives);
    for name in ["pid", "command"] {
        fs::write(sandbox.file(name), format!("{} {} \n", process.pid, process.start)).unwrap();
    }
    let report = sandbox.poll();
    assert!(!report.alive && report.exit.is_none());
    let answer = sandbox.stop();
    assert!(matches!(answer, StopAnswer::Cancelled { exit: None, .. }), "{answer:?}");
    assert_eq!(sandbox.cleanup(), CleanupAnswer::Removed);
    child.wait().unwrap();
}

fn a_daemon_that_writes_on_does_not_keep_the_run_alive(sandbox: &Sandbox) {
    sandbox.start("setsid sh -c 'echo $$ >$HOME/daemon; while :; do echo tick; sleep 0.05; done' & exit 4");
    let report = sandbox.poll_until_exit();
    assert_eq!((report.exit, report.killed), (Some(4), false));
    let daemon = sandbox.pid_in("daemon");
    wait_until_blocking("the wrapper is gone", || sandbox.poll().alive, |alive| !alive);
    let size = sandbox.poll().size;
    wait_until_blocking("the log grows on", || sandbox.poll().size, |now| *now > size);
    let answer = sandbox.stop();
    assert!(
        matches!(answer, StopAnswer::NotCancelled { exit: Some(4), .. }),
        "{answer:?}"
    );
    assert!(daemon.lives());
    assert_eq!(sandbox.cleanup(), CleanupAnswer::Removed);
    assert!(!daemon.lives());
}
