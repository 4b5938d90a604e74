//! What stands in the run directory, or can't be written there.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use boxrun::box_api::answers::{
    DispatchAnswer, PollAnswer, PollReport, ProbeAnswer, StopAnswer, read_dispatch, read_poll, read_probe, read_stop,
};
use boxrun::box_api::scripts::{self, Launch, STOP_GRACE, Script};

use super::processes::Process;
use super::sandbox::Sandbox;
use super::under_each_shell;
use crate::support::wait::wait_until_blocking;

under_each_shell!(
    an_exit_that_is_no_small_file_is_no_exit,
    a_log_that_was_replaced_is_read_as_it_is_now,
    a_log_of_two_gigabytes_is_read_at_any_offset,
    a_full_disk_refuses_a_dispatch,
    a_full_disk_loses_output_and_not_the_exit,
    an_exit_is_recorded_once_there_is_room_again,
    a_stop_ends_a_wrapper_that_finds_no_room_for_the_exit,
    a_file_size_limit_kills_the_command_and_not_the_wrapper,
    a_home_that_cannot_be_written_promises_nothing,
);

fn dispatch_script(sandbox: &Sandbox, command: &str) -> Script {
    let env = BTreeMap::new();
    let launch = Launch {
        command,
        cwd: None,
        env: &env,
        watchdog: Duration::from_secs(600),
        secret_env: &[],
        git: None,
    };
    scripts::dispatch(&sandbox.place(), &launch)
}

/// With these lines in front.
fn after(lines: &str, script: &Script) -> Script {
    Script {
        text: format!("{lines}\n{}", script.text),
        ..*script
    }
}

fn part(sandbox: &Sandbox, offset: u64, max_bytes: u64) -> PollReport {
    match sandbox.poll_answer(offset, max_bytes) {
        PollAnswer::Present(report) => report,
        other => panic!("{other:?}"),
    }
}

fn an_exit_that_is_no_small_file_is_no_exit(sandbox: &Sandbox) {
    sandbox.start("exit 17");
    sandbox.poll_until_exit();
    let exit = sandbox.file("exit-code");
    fs::write(&exit, "7".repeat(10 << 20)).unwrap();
    let began = Instant::now();
    assert_eq!(sandbox.poll().exit, None);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "10 MB were read byte by byte: {:?}",
        began.elapsed()
    );
    fs::write(&exit, "1\u{0}7\u{0}\n").unwrap();
    sandbox.poll();
    fs::write(&exit, "\u{0}".repeat(10)).unwrap();
    assert_eq!(sandbox.poll().exit, None);
    fs::remove_file(&exit).unwrap();
    fs::create_dir(&exit).unwrap();
    assert_eq!(sandbox.poll().exit, None);
    fs::remove_dir(&exit).unwrap();
    assert!(
        sandbox
            .command("/usr/bin/mkfifo")
            .arg(&exit)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(sandbox.poll().exit, None);
    let answer = sandbox.stop();
    assert!(matches!(answer, StopAnswer::Cancelled { exit: None, .. }), "{answer:?}");
}

fn a_log_that_was_replaced_is_read_as_it_is_now(sandbox: &Sandbox) {
    sandbox.start("echo a long line of the old log");
    sandbox.poll_until_exit();
    fs::write(sandbox.home().join("other"), "short\n").unwrap();
    fs::rename(sandbox.home().join("other"), sandbox.file("output.log")).unwrap();
    let report = part(sandbox, 0, 100);
    assert_eq!((report.size, report.data.as_slice()), (6, b"short\n".as_slice()));
    let report = part(sandbox, 20, 100);
    assert_eq!(
        (report.size, report.data.as_slice()),
        (6, b"".as_slice()),
        "an offset beyond its end reads nothing"
    );
}

fn a_log_of_two_gigabytes_is_read_at_any_offset(sandbox: &Sandbox) {
    sandbox.start("exit 0");
    sandbox.poll_until_exit();
    let log = fs::OpenOptions::new()
        .append(true)
        .open(sandbox.file("output.log"))
        .unwrap();
    let size = (2 << 30) + 5;
    // A hole: it takes no room.
    log.set_len(size - 5).unwrap();
    (&log).write_all(b"tail\n").unwrap();
    let report = part(sandbox, size - 5, 1000);
    assert_eq!((report.size, report.data.as_slice()), (size, b"tail\n".as_slice()));
    let report = part(sandbox, 0, 1000);
    assert_eq!((report.size, report.data), (size, vec![0; 1000]));
}

/// Nobody who runs under this limit can write a byte to a file, and what tries is told, as on a full disk.
const FULL: &str = "trap '' XFSZ; ulimit -f 0";

fn a_full_disk_refuses_a_dispatch(sandbox: &Sandbox) {
    let answer = sandbox.run(&after(FULL, &dispatch_script(sandbox, "touch $HOME/ran")));
    let what = "script".to_owned();
    assert_eq!(read_dispatch(&answer.printed()), DispatchAnswer::Refused { what });
    assert!(sandbox.poll().never_started, "and it never starts");
    assert!(!sandbox.home().join("ran").exists());
}

fn a_full_disk_loses_output_and_not_the_exit(sandbox: &Sandbox) {
    let log = sandbox.file("output.log");
    let log = log.display();
    sandbox.before("setsid", &format!("rm -f {log}; ln -s /dev/full {log}"));
    sandbox.start("echo lost || exit 5");
    let report = sandbox.poll_until_exit();
    assert_eq!((report.exit, report.size), (Some(5), 0));
}

fn an_exit_is_recorded_once_there_is_room_again(sandbox: &Sandbox) {
    let wrapper = no_room_for_the_exit(sandbox);
    let report = sandbox.poll();
    assert!(report.alive && report.exit.is_none());
    fs::remove_dir(sandbox.file("exit-code.tmp")).unwrap();
    assert_eq!(sandbox.poll_until_exit().exit, Some(6));
    wait_until_blocking("the wrapper is gone", || wrapper.lives(), |lives| !lives);
}

fn a_stop_ends_a_wrapper_that_finds_no_room_for_the_exit(sandbox: &Sandbox) {
    let wrapper = no_room_for_the_exit(sandbox);
    let answer = sandbox.stop();
    assert!(matches!(answer, StopAnswer::Cancelled { exit: None, .. }), "{answer:?}");
    assert!(!wrapper.lives());
}

/// A run that ended with 6, and can't say so.
fn no_room_for_the_exit(sandbox: &Sandbox) -> Process {
    let wrapper = sandbox.start("echo $$ >$HOME/command; while [ ! -e $HOME/go ]; do sleep 0.05; done; exit 6");
    let command = sandbox.pid_in("command");
    fs::create_dir(sandbox.file("exit-code.tmp")).unwrap();
    fs::write(sandbox.home().join("go"), "").unwrap();
    wait_until_blocking("the command is gone", || command.lives(), |lives| !lives);
    Process::of(wrapper).expect("the wrapper tries on")
}

fn a_file_size_limit_kills_the_command_and_not_the_wrapper(sandbox: &Sandbox) {
    let script = dispatch_script(sandbox, "exec head -c 100000 /dev/zero");
    let answer = sandbox.run(&after("ulimit -f 8", &script));
    let answer = read_dispatch(&answer.printed());
    assert!(matches!(answer, DispatchAnswer::Started { .. }), "{answer:?}");
    let report = sandbox.poll_until_exit();
    assert_eq!(report.exit, Some(153), "SIGXFSZ");
    assert!((4096..=8192).contains(&report.size), "{}", report.size);
}

/// As root too: nobody makes a directory below /proc.
fn a_home_that_cannot_be_written_promises_nothing(sandbox: &Sandbox) {
    let elsewhere = |script: Script| sandbox.run(&after("HOME=/proc", &script));
    let dispatched = elsewhere(dispatch_script(sandbox, "touch $HOME/ran"));
    let what = "directory".to_owned();
    assert_eq!(read_dispatch(&dispatched.printed()), DispatchAnswer::Refused { what });
    let probed = elsewhere(scripts::probe(&sandbox.place()));
    assert_eq!(read_probe(&probed.printed()), ProbeAnswer::Unclear);
    let stopped = elsewhere(scripts::stop(&sandbox.place(), 0, 100, STOP_GRACE));
    assert_eq!(read_stop(&stopped.printed(), 0), StopAnswer::Unclear);
    let polled = elsewhere(scripts::poll(&sandbox.place(), 0, 100));
    assert_eq!(
        read_poll(&polled.printed(), 0),
        PollAnswer::Absent,
        "a poll promises nothing about later"
    );
}
