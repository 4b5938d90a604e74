//! Stop and cleanup: everything of the run, nothing of anybody else, and an answer that can be relied on.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use boxrun::box_api::answers::{CleanupAnswer, DispatchAnswer, LogPart, StopAnswer};
use boxrun::box_api::scripts::Launch;

use super::processes::{Process, Stranger};
use super::sandbox::Sandbox;
use super::under_each_shell;
use crate::support::wait::wait_until_blocking;

under_each_shell!(
    a_stop_kills_and_the_exit_is_recorded,
    a_stop_kills_whatever_hides,
    a_kill_lets_the_command_say_goodbye,
    a_stopped_command_says_goodbye_too,
    a_process_orphaned_by_the_kill_is_not_forgotten,
    one_empty_look_is_not_enough,
    a_child_made_during_the_kill_is_killed_too,
    a_stop_of_an_ended_run_kills_nothing_and_tells_the_exit,
    a_repeated_stop_says_the_same,
    a_stop_of_nothing_leaves_a_tombstone,
    a_stop_before_the_wrapper_keeps_it_from_starting,
    a_wrapper_that_wakes_after_the_stop_starts_nothing,
    a_pid_file_that_lies_kills_nobody_else,
    a_command_file_that_lies_kills_nobody_else,
    a_reused_pid_is_left_alone_after_a_restart,
    a_stop_finds_marked_processes_without_a_directory,
    a_stopped_wrapper_does_not_outlive_the_stop,
    credentials_are_gone_after_the_end_and_after_a_stop,
    the_watchdog_ends_a_command_nobody_follows,
    a_cleanup_removes_survivors_and_the_directory,
    a_cleanup_of_nothing_leaves_a_tombstone,
);

fn cancelled_exit(answer: &StopAnswer) -> Option<u8> {
    match answer {
        StopAnswer::Cancelled { exit, .. } => *exit,
        other => panic!("{other:?}"),
    }
}

fn a_stop_kills_and_the_exit_is_recorded(sandbox: &Sandbox) {
    let wrapper = Process::of(sandbox.start("echo begun; echo $$ >$HOME/command; exec sleep 1000")).unwrap();
    let command = sandbox.pid_in("command");
    let answer = sandbox.stop();
    assert!(!command.lives() && !wrapper.lives());
    let log = Some(LogPart {
        from: 0,
        size: 6,
        data: b"begun\n".to_vec(),
    });
    assert_eq!(answer, StopAnswer::Cancelled { log, exit: Some(143) });
    let report = sandbox.poll();
    assert_eq!((report.exit, report.killed, report.alive), (Some(143), true, false));
}

fn a_stop_kills_whatever_hides(sandbox: &Sandbox) {
    // Each writes its pid; together they cover session, descent, mark, deaf ears and stopped processes.
    let hiders = [
        ("grandchild", "sh -c 'echo $$ >$HOME/grandchild; sleep 1000; :' &"),
        ("daemon", "setsid sh -c 'echo $$ >$HOME/daemon; exec sleep 1000' &"),
        ("orphan", "(setsid sh -c 'echo $$ >$HOME/orphan; exec sleep 1000' &)"),
        (
            "bare_child",
            "env -i HOME=$HOME PATH=$PATH sh -c 'echo $$ >$HOME/bare_child; exec sleep 1000' &",
        ),
        (
            "bare_orphan",
            "(env -i HOME=$HOME PATH=$PATH sh -c 'echo $$ >$HOME/bare_orphan; exec sleep 1000' &)",
        ),
        (
            "bare_daemon",
            "env -i HOME=$HOME PATH=$PATH setsid sh -c 'echo $$ >$HOME/bare_daemon; trap \"\" TERM; sleep 1000; sleep 1000' &",
        ),
        (
            "deaf",
            "sh -c 'trap \"\" TERM; echo $$ >$HOME/deaf; while :; do sleep 1; done' &",
        ),
        ("asleep", "sh -c 'echo $$ >$HOME/asleep; kill -STOP $$; sleep 1000' &"),
        (
            "deaf_and_asleep",
            "setsid sh -c 'trap \"\" TERM; echo $$ >$HOME/deaf_and_asleep; kill -STOP $$; sleep 1000' &",
        ),
        ("names_itself_oddly", "\"$HOME\"/odd* &"),
    ];
    // A name that reads like another process in /proc.
    sandbox.program(
        "home/odd ) b\n1 (c) S",
        "echo $$ >$HOME/names_itself_oddly\nsleep 1000\n:",
    );
    let mut command: String = hiders.iter().map(|(_, line)| format!("{line}\n")).collect();
    command.push_str("trap '' TERM\nwhile :; do sleep 1; done");
    sandbox.start(&command);
    let processes: Vec<(&str, Process)> = hiders.iter().map(|(name, _)| (*name, sandbox.pid_in(name))).collect();
    let mut stranger = Stranger::on(sandbox);
    let answer = sandbox.stop_within(Duration::from_secs(1));
    assert_eq!(cancelled_exit(&answer), Some(137));
    for (name, process) in processes {
        assert!(!process.lives(), "{name} lives");
    }
    assert!(stranger.lives());
}

fn a_kill_lets_the_command_say_goodbye(sandbox: &Sandbox) {
    sandbox.start("trap 'echo goodbye; exit 0' TERM; echo $$ >$HOME/command; while :; do sleep 0.1; done");
    sandbox.pid_in("command");
    let answer = sandbox.stop_within(Duration::from_secs(20));
    let StopAnswer::Cancelled {
        log: Some(log),
        exit: Some(0),
    } = &answer
    else {
        panic!("{answer:?}")
    };
    // The shell may say that its `sleep` was terminated.
    assert!(log.data.ends_with(b"goodbye\n"), "{log:?}");
}

fn a_stopped_command_says_goodbye_too(sandbox: &Sandbox) {
    sandbox.start("trap 'exit 9' TERM; echo $$ >$HOME/command; kill -STOP $$; while :; do sleep 0.1; done");
    sandbox.pid_in("command");
    assert_eq!(cancelled_exit(&sandbox.stop_within(Duration::from_secs(20))), Some(9));
}

/// Without mark and session, and soon without its parent: known only from the first look.
fn a_process_orphaned_by_the_kill_is_not_forgotten(sandbox: &Sandbox) {
    let daemon = "trap '' TERM\necho $$ >$HOME/daemon\nwhile :; do sleep 1; done";
    fs::write(sandbox.home().join("daemon.sh"), daemon).unwrap();
    sandbox.start("env -i HOME=$HOME PATH=$PATH setsid sh $HOME/daemon.sh & while :; do sleep 0.1; done");
    let daemon = sandbox.pid_in("daemon");
    assert_eq!(cancelled_exit(&sandbox.stop_within(Duration::from_secs(1))), Some(143));
    assert!(!daemon.lives());
}

/// A process in the middle of an exec has no environment to be seen.
fn one_empty_look_is_not_enough(sandbox: &Sandbox) {
    sandbox.start("echo $$ >$HOME/command; exec sleep 1000");
    let command = sandbox.pid_in("command");
    fs::remove_dir_all(sandbox.file("")).unwrap();
    sandbox.before("grep", "[ -e $HOME/looked ] || { : >$HOME/looked; exit 1; }");
    assert_eq!(sandbox.stop(), StopAnswer::Absent);
    assert!(!command.lives());
}

fn a_child_made_during_the_kill_is_killed_too(sandbox: &Sandbox) {
    let child = "trap '' TERM\necho $$ >$HOME/child\nwhile :; do sleep 1; done";
    fs::write(sandbox.home().join("child.sh"), child).unwrap();
    sandbox.start("trap 'setsid sh $HOME/child.sh & exit 8' TERM\necho $$ >$HOME/command\nwhile :; do sleep 0.1; done");
    sandbox.pid_in("command");
    let answer = sandbox.stop_within(Duration::from_secs(1));
    assert_eq!(cancelled_exit(&answer), Some(8));
    let child = fs::read_to_string(sandbox.home().join("child")).unwrap();
    assert_eq!(Process::of(child.trim().parse().unwrap()), None);
}

fn a_stop_of_an_ended_run_kills_nothing_and_tells_the_exit(sandbox: &Sandbox) {
    sandbox.start("sleep 1000 & echo $! >$HOME/survivor; echo done; exit 3");
    sandbox.poll_until_exit();
    let survivor = sandbox.pid_in("survivor");
    let log = Some(LogPart {
        from: 0,
        size: 5,
        data: b"done\n".to_vec(),
    });
    assert_eq!(sandbox.stop(), StopAnswer::NotCancelled { exit: Some(3), log });
    assert!(survivor.lives());
    assert!(!sandbox.file("kill-requested").exists());
    assert!(!sandbox.poll().killed);
}

fn a_repeated_stop_says_the_same(sandbox: &Sandbox) {
    sandbox.start("echo $$ >$HOME/command; exec sleep 1000");
    sandbox.pid_in("command");
    let first = sandbox.stop();
    assert_eq!(cancelled_exit(&first), Some(143));
    assert_eq!(sandbox.stop(), first);
}

fn a_stop_of_nothing_leaves_a_tombstone(sandbox: &Sandbox) {
    assert_eq!(sandbox.stop(), StopAnswer::Absent);
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::Tombstone);
    assert_eq!(sandbox.stop(), StopAnswer::Absent);
    assert!(!sandbox.home().join("ran").exists());
}

fn a_stop_before_the_wrapper_keeps_it_from_starting(sandbox: &Sandbox) {
    fs::create_dir_all(sandbox.file("")).unwrap();
    assert_eq!(cancelled_exit(&sandbox.stop()), None);
    assert!(sandbox.poll().never_started);
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::AlreadyThere);
}

/// The wrapper took the launch, then the box stood still; the stop found no process and said so.
fn a_wrapper_that_wakes_after_the_stop_starts_nothing(sandbox: &Sandbox) {
    // Its first tool after the launch is `cat`, for the boot id: there the request arrives.
    sandbox.before("cat", &format!(": >{}", sandbox.file("kill-requested").display()));
    sandbox.start("touch $HOME/ran");
    let report = sandbox.poll_until_exit();
    assert_eq!((report.exit, report.killed), (Some(143), true));
    assert!(!sandbox.home().join("ran").exists());
}

fn a_pid_file_that_lies_kills_nobody_else(sandbox: &Sandbox) {
    let mut stranger = Stranger::on(sandbox);
    for lie in [
        "1\n".to_owned(),
        "-1\n".to_owned(),
        "0 0\n".to_owned(),
        String::new(),
        format!("{} 1\n", stranger.id()),
    ] {
        let sandbox = sandbox.another();
        let mut own = Stranger::on(&sandbox);
        sandbox.start("echo $$ >$HOME/command; exec sleep 1000");
        let command = sandbox.pid_in("command");
        fs::write(sandbox.file("pid"), &lie).unwrap();
        fs::write(sandbox.file("command"), &lie).unwrap();
        let answer = sandbox.stop();
        assert!(matches!(answer, StopAnswer::Cancelled { .. }), "{lie:?}: {answer:?}");
        assert!(!command.lives(), "the mark is enough to find it");
        assert!(own.lives(), "{lie:?}");
    }
    assert!(stranger.lives());
}

/// The wrapper is known, but what it is said to have started is the head of somebody else's session.
fn a_command_file_that_lies_kills_nobody_else(sandbox: &Sandbox) {
    let mut stranger = Stranger::on(sandbox);
    for start in ["0", "", "x"] {
        let sandbox = sandbox.another();
        sandbox.start("echo $$ >$HOME/command; exec sleep 1000");
        let command = sandbox.pid_in("command");
        fs::write(sandbox.file("command"), format!("{} {start}\n", stranger.id())).unwrap();
        assert_eq!(cancelled_exit(&sandbox.stop()), Some(143));
        assert!(!command.lives() && stranger.lives());
    }
}

fn a_reused_pid_is_left_alone_after_a_restart(sandbox: &Sandbox) {
    fs::write(sandbox.boot_id_file(), "before\n").unwrap();
    sandbox.start("exit 0");
    sandbox.poll_until_exit();
    fs::remove_file(sandbox.file("exit-code")).unwrap();
    let mut stranger = Stranger::on(sandbox);
    let start = Process::of(stranger.id()).unwrap().start;
    fs::write(sandbox.file("pid"), format!("{} {start} before\n", stranger.id())).unwrap();
    fs::write(sandbox.file("command"), format!("{} {start}\n", stranger.id())).unwrap();
    fs::write(sandbox.boot_id_file(), "after\n").unwrap();
    assert_eq!(cancelled_exit(&sandbox.stop()), None);
    assert!(stranger.lives());
}

fn a_stop_finds_marked_processes_without_a_directory(sandbox: &Sandbox) {
    sandbox.start("echo $$ >$HOME/command; exec sleep 1000");
    let command = sandbox.pid_in("command");
    fs::remove_dir_all(sandbox.file("")).unwrap();
    assert_eq!(sandbox.stop(), StopAnswer::Absent);
    assert!(!command.lives());
}

fn a_stopped_wrapper_does_not_outlive_the_stop(sandbox: &Sandbox) {
    let wrapper = Process::of(sandbox.start("echo $$ >$HOME/command; exec sleep 1000")).unwrap();
    sandbox.pid_in("command");
    wrapper.signal("STOP");
    assert_eq!(cancelled_exit(&sandbox.stop()), Some(143));
    assert!(!wrapper.lives());
}

fn credentials_are_gone_after_the_end_and_after_a_stop(sandbox: &Sandbox) {
    let files = ["forge-credential", "gitconfig"];
    let write = |sandbox: &Sandbox| {
        for name in files {
            fs::write(sandbox.file(name), "secret").unwrap();
        }
    };
    let gone = |sandbox: &Sandbox| files.iter().all(|name| !sandbox.file(name).exists());
    sandbox.start("echo $$ >$HOME/command; while [ ! -e $HOME/go ]; do sleep 0.1; done");
    sandbox.pid_in("command");
    write(sandbox);
    fs::write(sandbox.home().join("go"), "").unwrap();
    sandbox.poll_until_exit();
    assert!(gone(sandbox), "the wrapper removes them before it records the exit");
    write(sandbox);
    sandbox.stop();
    assert!(gone(sandbox), "a stop does, even of a run that had ended");
}

fn the_watchdog_ends_a_command_nobody_follows(sandbox: &Sandbox) {
    let env = BTreeMap::new();
    let command = "setsid sleep 1000 & echo $! >$HOME/daemon; exec sleep 1000";
    let launch = Launch {
        command,
        cwd: None,
        env: &env,
        watchdog: Duration::from_secs(1),
        secret_env: &[],
        git: None,
    };
    assert!(matches!(sandbox.launch(&launch), DispatchAnswer::Started { .. }));
    let report = sandbox.poll_until_exit();
    assert_eq!(
        (report.exit, report.killed),
        (Some(143), true),
        "as a stop would have done it"
    );
    let answer = sandbox.stop();
    assert!(matches!(answer, StopAnswer::Cancelled { .. }), "{answer:?}");
}

fn a_cleanup_removes_survivors_and_the_directory(sandbox: &Sandbox) {
    sandbox.start("setsid sleep 1000 & echo $! >$HOME/survivor");
    sandbox.poll_until_exit();
    let survivor = sandbox.pid_in("survivor");
    assert_eq!(sandbox.cleanup(), CleanupAnswer::Removed);
    assert!(!survivor.lives());
    assert!(!sandbox.file("").exists());
    wait_until_blocking(
        "nothing of the run is left",
        || sandbox.cleanup(),
        |answer| *answer == CleanupAnswer::Removed,
    );
}

fn a_cleanup_of_nothing_leaves_a_tombstone(sandbox: &Sandbox) {
    assert_eq!(sandbox.cleanup(), CleanupAnswer::Removed);
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::Tombstone);
}
