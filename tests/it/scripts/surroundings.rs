//! What else is on the box: profiles that print, tools that are missing.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use boxrun::box_api::answers::{
    CleanupAnswer, DispatchAnswer, PollAnswer, ProbeAnswer, StopAnswer, read_cleanup, read_dispatch, read_poll,
    read_probe, read_stop,
};
use boxrun::box_api::scripts::{self, Launch, Script};

use super::sandbox::{Answer, Sandbox};
use super::under_each_shell;

under_each_shell!(
    a_noisy_profile_hides_no_answer,
    a_profile_that_prints_at_the_end_forges_no_start,
    every_missing_tool_is_named_and_nothing_starts,
);

/// Runs a script in a shell whose profile prints first, the last line without an end.
fn noisily(sandbox: &Sandbox, script: &Script) -> Answer {
    let noise = "printf 'Welcome!\\n  OA_PRESENT=0\\nYou have mail: 4242'; echo 'stty: not a tty' >&2\n";
    sandbox.run(&Script {
        text: format!("{noise}{}", script.text),
        ..*script
    })
}

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

fn a_noisy_profile_hides_no_answer(sandbox: &Sandbox) {
    let place = sandbox.place();
    let dispatched = read_dispatch(
        &noisily(
            sandbox,
            &dispatch_script(sandbox, "echo out; echo $$ >$HOME/command; exec sleep 1000"),
        )
        .printed(),
    );
    let DispatchAnswer::Started { pid } = dispatched else {
        panic!("{dispatched:?}")
    };
    assert!(sandbox.read("pid").starts_with(&format!("{pid} ")));
    sandbox.pid_in("command");
    let again = noisily(sandbox, &dispatch_script(sandbox, "true"));
    assert_eq!(read_dispatch(&again.printed()), DispatchAnswer::AlreadyThere);
    let probed = noisily(sandbox, &scripts::probe(&place));
    assert_eq!(read_probe(&probed.printed()), ProbeAnswer::Present { pid: Some(pid) });
    let polled = noisily(sandbox, &scripts::poll(&place, 0, 100));
    let PollAnswer::Present(report) = read_poll(&polled.printed(), 0) else {
        panic!("{polled:?}")
    };
    assert_eq!((report.data.as_slice(), report.alive), (b"out\n".as_slice(), true));
    let stopped = noisily(sandbox, &scripts::stop(&place, 0, 100, Duration::from_secs(2)));
    let answer = read_stop(&stopped.printed(), 0);
    assert!(
        matches!(&answer, StopAnswer::Cancelled { log: Some(log), exit: Some(143) } if log.data == b"out\n"),
        "{answer:?}"
    );
    let cleaned = noisily(sandbox, &scripts::cleanup(&place));
    assert_eq!(read_cleanup(&cleaned.printed()), CleanupAnswer::Removed);
}

fn a_profile_that_prints_at_the_end_forges_no_start(sandbox: &Sandbox) {
    let script = dispatch_script(sandbox, "exit 0");
    let answer = sandbox.run(&Script {
        text: format!("trap 'echo Goodbye' EXIT\n{}", script.text),
        ..script
    });
    assert_eq!(
        read_dispatch(&answer.printed()),
        DispatchAnswer::Unclear,
        "a probe will tell"
    );
    assert!(matches!(sandbox.probe(), ProbeAnswer::Present { pid: Some(_) }));
    assert_eq!(sandbox.poll_until_exit().exit, Some(0));
}

fn every_missing_tool_is_named_and_nothing_starts(sandbox: &Sandbox) {
    for tool in [
        "base64", "cat", "date", "env", "grep", "head", "ls", "mv", "rm", "setsid", "sleep", "stat", "tail", "tr",
    ] {
        let sandbox = sandbox.another();
        fs::remove_file(sandbox.bin().join(tool)).unwrap();
        assert_eq!(
            sandbox.dispatch("touch $HOME/ran"),
            DispatchAnswer::Refused { what: tool.to_owned() }
        );
        assert!(sandbox.file("launch/never").exists(), "{tool}");
        assert!(!sandbox.home().join("ran").exists(), "{tool}");
    }
    fs::remove_file(sandbox.bin().join("mkdir")).unwrap();
    let what = "directory".to_owned();
    assert_eq!(sandbox.dispatch("touch $HOME/ran"), DispatchAnswer::Refused { what });
}
