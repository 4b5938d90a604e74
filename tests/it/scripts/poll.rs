//! Poll: what it reads, in which order, and what it makes of a run that has not started or has lost its wrapper.

use std::fs;

use boxrun::box_api::answers::{PollAnswer, PollReport};

use super::processes::Process;
use super::sandbox::Sandbox;
use super::under_each_shell;
use crate::support::wait::wait_until_blocking;

under_each_shell!(
    a_poll_of_nothing_says_absent,
    a_log_is_read_in_bounded_parts,
    output_after_the_command_truncated_its_log_lands_at_the_start,
    a_poll_reads_alive_then_exit_then_size_then_data,
    a_log_that_is_no_regular_file_reads_as_empty,
    an_exit_file_that_makes_no_sense_is_no_exit,
    a_run_without_launch_is_starting_for_a_minute,
    a_run_that_has_not_started_after_a_minute_never_does,
    a_wrapper_killed_alone_is_not_alive_and_has_no_exit,
    another_boot_id_means_restarted,
    a_missing_boot_id_is_an_unchanged_one,
    a_pid_with_another_start_time_is_not_alive,
    a_home_that_is_not_there_says_nothing_about_the_run,
);

fn part(sandbox: &Sandbox, offset: u64, max_bytes: u64) -> PollReport {
    match sandbox.poll_answer(offset, max_bytes) {
        PollAnswer::Present(report) => report,
        other => panic!("{other:?}"),
    }
}

/// A run directory as a dispatch makes it, before any wrapper.
fn half_started(sandbox: &Sandbox) {
    fs::create_dir_all(sandbox.file("")).unwrap();
    fs::write(sandbox.file("output.log"), "").unwrap();
}

fn a_poll_of_nothing_says_absent(sandbox: &Sandbox) {
    assert_eq!(sandbox.poll_answer(0, 100), PollAnswer::Absent);
    assert!(!sandbox.file("").exists(), "a poll leaves no tombstone");
}

fn a_log_is_read_in_bounded_parts(sandbox: &Sandbox) {
    sandbox.start("seq 1 20000; printf '\\000\\377 no newline at the end'");
    let size = sandbox.poll_until_exit().size;
    let mut whole = Vec::new();
    while (whole.len() as u64) < size {
        let report = part(sandbox, whole.len() as u64, 30_001);
        assert_eq!(
            (report.from, report.size, report.exit),
            (whole.len() as u64, size, Some(0))
        );
        assert!((1..=30_001).contains(&report.data.len()));
        whole.extend(report.data);
    }
    assert_eq!(whole, fs::read(sandbox.file("output.log")).unwrap());
    for offset in [size, size + 1, u64::MAX] {
        assert_eq!(part(sandbox, offset, 100).data, b"", "from {offset}");
    }
    assert_eq!(part(sandbox, 0, 0).data, b"");
}

fn output_after_the_command_truncated_its_log_lands_at_the_start(sandbox: &Sandbox) {
    sandbox
        .start("echo a long first line; : > $HOME/.openagents/box-runs/users/u1/$BOXRUN_RUN_ID/output.log; echo two");
    assert_eq!(sandbox.poll_until_exit().data, b"two\n");
}

/// A command that ends between two steps of a poll is seen with its whole log or as not ended. Reading size or data before
/// the exit would pair the exit with an old log; reading the exit before alive would pair a dead wrapper with no exit.
fn a_poll_reads_alive_then_exit_then_size_then_data(sandbox: &Sandbox) {
    half_started(sandbox);
    fs::create_dir(sandbox.file("launch")).unwrap();
    let directory = sandbox.file("");
    let directory = directory.display();
    let (log, exit) = (format!("{directory}output.log"), format!("{directory}exit-code"));
    // The boot id is read for alive, `ls` tells the size, `tail` the data. At each the run goes on by one step.
    let living = Process::of(std::process::id()).unwrap();
    fs::write(
        sandbox.file("pid"),
        format!(
            "{} {} boot
",
            living.pid, living.start
        ),
    )
    .unwrap();
    fs::write(sandbox.boot_id_file(), "boot\n").unwrap();
    sandbox.before("cat", &format!("echo alive >>{log}; echo 7 >{exit}"));
    sandbox.before("ls", &format!("echo size >>{log}; rm -f {exit}"));
    sandbox.before("tail", &format!("echo data >>{log}"));
    let report = sandbox.poll();
    assert!(report.alive);
    assert_eq!(
        report.exit,
        Some(7),
        "alive was read before the exit, and the exit before the size"
    );
    assert_eq!(report.size, 11, "the size was read after the exit");
    assert_eq!(
        report.data, b"alive\nsize\n",
        "what came after the size waits for the next poll"
    );
    assert!(
        sandbox.read("output.log").ends_with("size\ndata\n"),
        "the data was read after the size"
    );
}

fn a_log_that_is_no_regular_file_reads_as_empty(sandbox: &Sandbox) {
    sandbox.start("echo hello");
    sandbox.poll_until_exit();
    let log = sandbox.file("output.log");
    fs::rename(&log, sandbox.home().join("elsewhere")).unwrap();
    assert!(sandbox.command("/usr/bin/mkfifo").arg(&log).status().unwrap().success());
    let report = part(sandbox, 2, 100);
    assert_eq!(
        (report.size, report.data.as_slice(), report.exit),
        (0, b"".as_slice(), Some(0))
    );
    fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &log).unwrap();
    assert_eq!(sandbox.poll().size, 0);
    fs::remove_file(&log).unwrap();
    assert_eq!(sandbox.poll().size, 0);
    fs::create_dir(&log).unwrap();
    assert_eq!(sandbox.poll().size, 0);
}

fn an_exit_file_that_makes_no_sense_is_no_exit(sandbox: &Sandbox) {
    sandbox.start("exit 17");
    sandbox.poll_until_exit();
    for (text, expected) in [
        ("", None),
        ("\n", None),
        ("x\n", None),
        ("256\n", None),
        ("-1\n", None),
        ("007\n", None),
        ("17", Some(17)),
    ] {
        fs::write(sandbox.file("exit-code"), text).unwrap();
        assert_eq!(sandbox.poll().exit, expected, "{text:?}");
    }
}

fn a_run_without_launch_is_starting_for_a_minute(sandbox: &Sandbox) {
    half_started(sandbox);
    assert!(sandbox.poll().alive);
    sandbox.age("", 50);
    assert!(sandbox.poll().alive);
    fs::create_dir(sandbox.file("launch")).unwrap();
    sandbox.age("", 500);
    sandbox.age("launch", 50);
    let report = sandbox.poll();
    assert!(report.alive && !report.never_started);
    sandbox.age("launch", -500);
    assert!(sandbox.poll().alive, "a clock that was set back proves nothing");
    sandbox.age("launch", 61);
    let report = sandbox.poll();
    assert!(
        !report.alive && !report.never_started,
        "the wrapper began and left no pid: no promise that it never starts"
    );
}

fn a_run_that_has_not_started_after_a_minute_never_does(sandbox: &Sandbox) {
    half_started(sandbox);
    sandbox.age("", 61);
    let report = sandbox.poll();
    assert!(!report.alive && report.never_started && report.exit.is_none());
    assert!(sandbox.file("launch").is_dir(), "the lock is taken");
    assert!(sandbox.poll().never_started, "the same is said again, at once");
}

fn a_wrapper_killed_alone_is_not_alive_and_has_no_exit(sandbox: &Sandbox) {
    let wrapper = Process::of(sandbox.start("echo $$ >$HOME/command; exec sleep 1000")).unwrap();
    let command = sandbox.pid_in("command");
    wrapper.signal("KILL");
    wait_until_blocking("the wrapper is gone", || wrapper.lives(), |lives| !lives);
    let report = sandbox.poll();
    assert!(!report.alive && report.exit.is_none() && !report.never_started && !report.restarted);
    assert!(command.lives(), "a poll kills nothing");
    sandbox.stop();
    assert!(!command.lives());
}

fn another_boot_id_means_restarted(sandbox: &Sandbox) {
    fs::write(sandbox.boot_id_file(), "before\n").unwrap();
    sandbox.start("exec sleep 1000");
    assert!(sandbox.poll().alive);
    fs::write(sandbox.boot_id_file(), "after\n").unwrap();
    let report = sandbox.poll();
    assert!(!report.alive && report.restarted);
}

fn a_missing_boot_id_is_an_unchanged_one(sandbox: &Sandbox) {
    fs::write(sandbox.boot_id_file(), "before\n").unwrap();
    sandbox.start("exec sleep 1000");
    fs::remove_file(sandbox.boot_id_file()).unwrap();
    let report = sandbox.poll();
    assert!(report.alive && !report.restarted);

    let other = sandbox.another();
    other.start("exec sleep 1000");
    fs::write(other.boot_id_file(), "known now\n").unwrap();
    let report = other.poll();
    assert!(report.alive && !report.restarted);
}

fn a_pid_with_another_start_time_is_not_alive(sandbox: &Sandbox) {
    let pid = sandbox.start("exec sleep 1000");
    let record = sandbox.read("pid");
    for reused in [
        format!("{pid} 1 boot\n"),
        format!("{pid}\n"),
        format!("1{}", &record[record.find(' ').unwrap()..]),
    ] {
        fs::write(sandbox.file("pid"), &reused).unwrap();
        assert!(!sandbox.poll().alive, "{reused}");
    }
    fs::write(sandbox.file("pid"), record).unwrap();
    assert!(sandbox.poll().alive);
}

fn a_home_that_is_not_there_says_nothing_about_the_run(sandbox: &Sandbox) {
    sandbox.start("exit 0");
    sandbox.poll_until_exit();
    fs::rename(sandbox.home(), sandbox.home().with_extension("unmounted")).unwrap();
    assert_eq!(sandbox.poll_answer(0, 100), PollAnswer::Unclear);
}
