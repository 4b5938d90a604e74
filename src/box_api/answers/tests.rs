use proptest::prelude::*;

use super::*;

fn printed(stdout: &str) -> Printed<'_> {
    Printed {
        stdout,
        exit_code: Some(0),
        stdout_truncated: false,
    }
}

fn report(stdout: &str, asked_offset: u64) -> PollReport {
    match read_poll(&printed(stdout), asked_offset) {
        PollAnswer::Present(report) => report,
        other => panic!("{other:?} for {stdout:?}"),
    }
}

#[test]
fn a_dispatch_is_read_by_exit_code_and_marker() {
    let refused = |what: &str| DispatchAnswer::Refused { what: what.to_owned() };
    let table = [
        ("4242\n", Some(0), DispatchAnswer::Started { pid: 4242 }),
        ("4242", None, DispatchAnswer::Started { pid: 4242 }),
        (
            "Welcome to your box\r\n\r\n4242\r\n\n",
            Some(0),
            DispatchAnswer::Started { pid: 4242 },
        ),
        ("OPENAGENTS_RUN_EXISTS\n", Some(73), DispatchAnswer::AlreadyThere),
        ("OPENAGENTS_RUN_EXISTS\n", None, DispatchAnswer::AlreadyThere),
        ("", Some(73), DispatchAnswer::AlreadyThere),
        ("motd\nOA_TOMBSTONE=1\n", Some(73), DispatchAnswer::Tombstone),
        ("OA_TOMBSTONE=1\n", None, DispatchAnswer::Tombstone),
        ("OA_REFUSED=cwd\n", Some(74), refused("cwd")),
        ("OA_REFUSED=cwd\n", None, refused("cwd")),
        ("", Some(74), refused("unknown")),
        ("OA_REFUSED=<b>\n", Some(74), refused("unknown")),
        ("", Some(0), DispatchAnswer::Unclear),
        ("", None, DispatchAnswer::Unclear),
        ("4242\nbye\n", Some(0), DispatchAnswer::Unclear),
        ("4242\n", Some(1), DispatchAnswer::Unclear),
        ("4242\n", Some(-1), DispatchAnswer::Unclear),
        ("1\n", Some(0), DispatchAnswer::Unclear),
        ("-4242\n", Some(0), DispatchAnswer::Unclear),
        ("+4242\n", Some(0), DispatchAnswer::Unclear),
        ("99999999999999999999999\n", Some(0), DispatchAnswer::Unclear),
        ("OPENAGENTS_RUN_EXISTS\n4242\n", Some(0), DispatchAnswer::Unclear),
        ("OA_REFUSED=cwd\n4242\n", Some(0), DispatchAnswer::Unclear),
    ];
    for (stdout, exit_code, expected) in table {
        assert_eq!(
            read_dispatch(&Printed {
                stdout,
                exit_code,
                stdout_truncated: false
            }),
            expected,
            "{stdout:?} {exit_code:?}"
        );
    }
}

#[test]
fn a_probe_is_whole_with_present_alone() {
    let table = [
        ("OA_PRESENT=0", ProbeAnswer::Absent),
        ("OA_PRESENT=1\n", ProbeAnswer::Present { pid: None }),
        (
            "hello\nOA_PRESENT=1\nOA_PID=4242\n",
            ProbeAnswer::Present { pid: Some(4242) },
        ),
        ("OA_PRESENT=1\nOA_PID=1\n", ProbeAnswer::Present { pid: None }),
        ("OA_PRESENT=1\nOA_PID=x\n", ProbeAnswer::Present { pid: None }),
        ("", ProbeAnswer::Unclear),
        ("OA_PRESENT=", ProbeAnswer::Unclear),
        ("OA_PRESENT=2\n", ProbeAnswer::Unclear),
        (" OA_PRESENT=0\n", ProbeAnswer::Unclear),
        ("say OA_PRESENT=0\n", ProbeAnswer::Unclear),
    ];
    for (stdout, expected) in table {
        assert_eq!(read_probe(&printed(stdout)), expected, "{stdout:?}");
    }
}

#[test]
fn a_minimal_poll_is_accepted() {
    let report = report("OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\nOA_EXIT=0\nOA_ALIVE=0\n", 0);
    assert_eq!(
        (report.from, report.size, report.exit, report.alive),
        (0, 0, Some(0), false)
    );
    assert!(report.data.is_empty() && !report.killed && !report.never_started && !report.restarted);
}

#[test]
fn every_part_of_a_poll_is_read() {
    let text = "OA_PRESENT=1\r\nOA_FROM=3\r\nOA_SIZE=8\r\nOA_DATA=aGVsbG8=\r\nOA_EXIT=143\r\nOA_KILLED=1\r\nOA_NEVER_STARTED=1\r\nOA_RESTARTED=1\r\nOA_ALIVE=1\r\n";
    let expected = PollReport {
        from: 3,
        size: 8,
        data: b"hello".to_vec(),
        exit: Some(143),
        killed: true,
        alive: true,
        never_started: true,
        restarted: true,
    };
    assert_eq!(report(text, 0), expected);
    assert_eq!(
        report(&format!("OA_PRESENT=0\nlast login\n{text}"), 0),
        expected,
        "the last line of a name counts"
    );
}

#[test]
fn a_poll_that_is_not_whole_is_no_answer() {
    let unclear = [
        "",
        "<html>502</html>",
        "OA_PRESENT=1\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_SIZE=0\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_ALIVE=0\nOA_SIZE=0\nOA_DATA=\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\nOA_ALIVE=\n",
        "OA_PRESENT=1\nOA_SIZE=5\nOA_DATA=aGVsbG\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=5\nOA_DATA=?\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=-1\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=99999999999999999999\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_FROM=x\nOA_SIZE=0\nOA_DATA=\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\nOA_EXIT=256\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\nOA_EXIT=-1\nOA_ALIVE=0\n",
        "OA_PRESENT=1\nOA_SIZE=0\nOA_DATA=\nOA_EXIT=\nOA_ALIVE=0\n",
    ];
    for stdout in unclear {
        assert_eq!(read_poll(&printed(stdout), 0), PollAnswer::Unclear, "{stdout:?}");
    }
}

#[test]
fn a_poll_that_the_provider_cut_says_so() {
    let stdout = "OA_PRESENT=1\nOA_SIZE=5\nOA_DATA=aGVs";
    assert_eq!(
        read_poll(
            &Printed {
                stdout,
                exit_code: None,
                stdout_truncated: true
            },
            0
        ),
        PollAnswer::Truncated
    );
}

#[test]
fn data_ends_where_the_log_did() {
    let at = |size: u64, asked_offset| {
        report(
            &format!("OA_PRESENT=1\nOA_SIZE={size}\nOA_DATA=aGVsbG8=\nOA_ALIVE=1\n"),
            asked_offset,
        )
        .data
    };
    assert_eq!(at(5, 0), b"hello");
    assert_eq!(at(500, 0), b"hello");
    assert_eq!(at(2, 0), b"he");
    assert_eq!(at(12, 10), b"he");
    assert_eq!(at(5, 5), b"");
    assert_eq!(at(5, 6), b"");
    assert_eq!(at(5, u64::MAX), b"");
    assert_eq!(at(0, 0), b"");
}

#[test]
fn a_stop_is_whole_with_cancelled_or_with_absence() {
    let log = Some(LogPart {
        from: 2,
        size: 7,
        data: b"hello".to_vec(),
    });
    let table = [
        ("OA_PRESENT=0\n", StopAnswer::Absent),
        ("OA_CANCELLED=1", StopAnswer::Cancelled { log: None, exit: None }),
        (
            "motd\nOA_CANCELLED=1\nOA_EXIT=143\nOA_SIZE=7\nOA_DATA=aGVsbG8=\n",
            StopAnswer::Cancelled {
                log: log.clone(),
                exit: Some(143),
            },
        ),
        (
            "OA_CANCELLED=0\nOA_EXIT=0\nOA_SIZE=7\nOA_DATA=aGVsbG8=",
            StopAnswer::NotCancelled { exit: Some(0), log },
        ),
        (
            "OA_CANCELLED=0\nOA_EXIT=0\nOA_SIZE=7\nOA_DATA=aGVsbG8",
            StopAnswer::NotCancelled {
                exit: Some(0),
                log: None,
            },
        ),
        ("OA_CANCELLED=0\n", StopAnswer::NotCancelled { exit: None, log: None }),
        ("", StopAnswer::Unclear),
        ("OA_PRESENT=1\n", StopAnswer::Unclear),
        ("OA_CANCELLED=yes\n", StopAnswer::Unclear),
        ("OA_CANCELLED=0\nOA_EXIT=256\n", StopAnswer::Unclear),
        ("OA_PRESENT=0\nOA_CANCELLED=1\n", StopAnswer::Unclear),
    ];
    for (stdout, expected) in table {
        assert_eq!(read_stop(&printed(stdout), 2), expected, "{stdout:?}");
    }
}

#[test]
fn a_kill_whose_log_was_cut_is_still_a_kill() {
    let stdout = "OA_CANCELLED=1\nOA_EXIT=143\nOA_SIZE=7\nOA_DATA=aGVs";
    let answer = read_stop(
        &Printed {
            stdout,
            exit_code: Some(0),
            stdout_truncated: true,
        },
        0,
    );
    assert_eq!(
        answer,
        StopAnswer::Cancelled {
            log: None,
            exit: Some(143)
        }
    );
}

#[test]
fn a_cleanup_counts_only_when_the_directory_is_gone() {
    assert_eq!(read_cleanup(&printed("motd\nOA_REMOVED=1\n")), CleanupAnswer::Removed);
    for stdout in ["", "OA_REMOVED=0\n", "removed OA_REMOVED=1\n"] {
        assert_eq!(read_cleanup(&printed(stdout)), CleanupAnswer::Unclear, "{stdout:?}");
    }
}

/// Lines that look like ours, with values that need not make sense.
fn nearly_an_answer() -> impl Strategy<Value = String> {
    let names =
        "PRESENT|FROM|SIZE|DATA|EXIT|KILLED|ALIVE|CANCELLED|PID|REFUSED|TOMBSTONE|REMOVED|NEVER_STARTED|RESTARTED";
    let line = format!(
        "OA_({names})=([01]|-?[0-9]{{1,25}}|[a-zA-Z0-9+/=]{{0,12}}|\\PC{{0,6}})|[0-9]{{1,25}}|OPENAGENTS_RUN_EXISTS|\\PC{{0,9}}"
    );
    proptest::collection::vec(proptest::string::string_regex(&line).unwrap(), 0..12).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(
        stdout in prop_oneof![nearly_an_answer(), any::<String>()],
        exit_code in prop_oneof![Just(None), Just(Some(0)), Just(Some(73)), Just(Some(74)), any::<i64>().prop_map(Some)],
        stdout_truncated: bool,
        asked_offset: u64,
    ) {
        let printed = Printed { stdout: &stdout, exit_code, stdout_truncated };
        if let DispatchAnswer::Started { pid } = read_dispatch(&printed) {
            prop_assert!(pid > 1);
        }
        let _ = read_probe(&printed);
        if let PollAnswer::Present(PollReport { from, size, data, .. }) = read_poll(&printed, asked_offset) {
            prop_assert!(data.len() as u64 <= size.saturating_sub(from));
        }
        if let StopAnswer::Cancelled { log: Some(LogPart { from, size, data }), .. } = read_stop(&printed, asked_offset) {
            prop_assert!(data.len() as u64 <= size.saturating_sub(from));
        }
        let _ = read_cleanup(&printed);
    }

    #[test]
    fn an_answer_cut_anywhere_is_the_whole_one_or_none(data: Vec<u8>, cut: prop::sample::Index) {
        let whole = format!("\nOA_PRESENT=1\nOA_FROM=0\nOA_SIZE={}\nOA_DATA={}\nOA_EXIT=1\nOA_ALIVE=0\n", data.len(), STANDARD.encode(&data));
        let part = &whole[..cut.index(whole.len() + 1)];
        let answer = read_poll(&printed(part), 0);
        prop_assert!(answer == PollAnswer::Unclear || answer == read_poll(&printed(&whole), 0), "{part:?}");
    }
}
