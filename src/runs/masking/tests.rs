//! What is masked, and that it makes no difference how a log is read.

use proptest::prelude::*;

use super::rules::SCHEMES;
use super::*;

/// They overlap themselves, each other, and one begins another.
const SECRETS: [&str; 6] = [
    "hunter2-hunter2",
    "hunter2-",
    "aabaabaab",
    "-hunter2-hunter2-x",
    "pass word ä€😀 end",
    "https://inner/se",
];

fn masker() -> Masker {
    Masker::new(SECRETS.map(str::to_owned))
}

fn ghp() -> String {
    format!("ghp_{}", "a1".repeat(18))
}

#[test]
fn secrets_are_masked_by_shape_and_by_value() {
    let token = ghp();
    for (text, expected) in [
        ("clone https://bob:pw@git.example/x.git now", "clone [REDACTED_URL] now"),
        ("clone GIT+SSH://bob:pw@git.example/x.git", "clone [REDACTED_URL]"),
        ("x a234567890.+-456://u:p@h y", "x [REDACTED_URL] y"),
        ("x a234567890a234567://u:p@h y", "x a234567890a234567://u:p@h y"),
        ("x '9http://u:p@h' y", "x '9http://u:p@h' y"),
        ("_http://u:p@h", "_http://u:p@h"),
        ("https://u:p@h?token=x, https://u:@h", "[REDACTED_URL] https://u:@h"),
        ("https://proxy/https://u:p@h/x", "https://proxy/[REDACTED_URL]"),
        ("see https://desktop.ascii.dev/s/abc", "see [REDACTED_URL]"),
        ("see HTTPS://viewer.ascii.dev", "see [REDACTED_URL]"),
        (
            "GET https://api.example/v1?a=1&api-key=abc&b=2 ok",
            "GET https://api.example/v1?[REDACTED] ok",
        ),
        ("https://h/?Authentication-Token=x", "https://h/?[REDACTED]"),
        ("https://h/?auth_token=x", "https://h/?[REDACTED]"),
        ("https://h?credential=x", "https://h?[REDACTED]"),
        ("https://h/?x_token=x /a?token=y", "https://h/?x_token=x /a?token=y"),
        (
            "curl -H 'Authorization: Bearer abc'",
            "curl -H 'Authorization: [REDACTED]",
        ),
        (
            "{\"authorization\": \"Bearer abc\"}\nnext",
            "{\"authorization\": [REDACTED]\nnext",
        ),
        ("Authorization:\nnext", "Authorization:\nnext"),
        ("x hunter2-hunter2 y hunter2- z", "x [REDACTED] y [REDACTED] z"),
        ("hunter2-hunter2-hunter2-hunter2-x", "[REDACTED]"),
        ("aabaabaabaabaabaab", "[REDACTED]"),
        ("aabaabaabaabaabaabaa", "[REDACTED]aa"),
        (&format!("token {token}."), "token [REDACTED]."),
        (&format!("not1{token}"), &format!("not1{token}")),
        (&format!("_{token}"), "_[REDACTED]"),
        ("AKIAABCDEFGHIJKLMNOPQ", "[REDACTED]Q"),
        ("https://openagents.com/clone", "https://openagents.com/clone"),
        ("https://example.org/?page=2", "https://example.org/?page=2"),
        ("a:b@c http://h:80/@", "a:b@c http://h:80/@"),
    ] {
        assert_eq!(masker().mask(text), expected);
    }
}

#[test]
fn a_marker_is_not_looked_at_again() {
    let masker = Masker::new([
        "REDACTED".to_owned(),
        "https://".to_owned(),
        "[REDACTED_URL]".to_owned(),
    ]);
    assert_eq!(
        masker.mask("a REDACTED b https://u:p@h"),
        "a [REDACTED] b [REDACTED_URL]"
    );
}

#[test]
fn a_short_secret_does_not_blank_ordinary_text() {
    assert_eq!(Masker::new(["a".to_owned(), String::new()]).mask("banana"), "banana");
}

#[test]
fn what_can_become_no_secret_appears_at_once() {
    for text in [
        "hello",
        "see https://openagents.com/clone",
        "100 %",
        "a line\n",
        "README.md",
        "$ ",
    ] {
        let released = masker().release(text.as_bytes(), LogEnd::Open, Carried::default());
        assert_eq!(released.text, text);
    }
}

#[test]
fn what_may_become_a_secret_waits_and_is_decided_at_the_end() {
    for (text, appears) in [
        ("x https", "x "),
        ("x https://bob:p", "x "),
        ("x https://h/?page=1", "x https://h/"),
        ("x gh", "x "),
        ("x hunter2-hun", "x "),
        ("x Authorization: Bearer y", "x "),
    ] {
        let open = masker().release(text.as_bytes(), LogEnd::Open, Carried::default());
        assert_eq!(
            (open.text.as_str(), open.log_bytes),
            (appears, length(appears.len())),
            "{text}"
        );
        let whole = masker().release(text.as_bytes(), LogEnd::Reached, Carried::default());
        assert_eq!(whole.text, masker().mask(text));
        let lost = masker().release(text.as_bytes(), LogEnd::Lost, Carried::default());
        assert_eq!(
            (lost.text, lost.log_bytes),
            (format!("{appears}{MARKER}"), length(text.len()))
        );
    }
}

#[test]
fn a_word_that_is_hardly_a_scheme_is_released_and_the_password_after_it_is_not() {
    let masker = masker();
    let first = masker.release(b"hello", LogEnd::Open, Carried::default());
    assert_eq!(first.text, "hello");
    let second = masker.release(b"://bob:pw@host/x y", LogEnd::Open, first.carried.unwrap());
    assert_eq!(second.text, "[REDACTED_URL] y");
}

/// Reads `log` in polls of these sizes, from where the last release ended; of each `true` the outcome is lost.
fn polled(masker: &Masker, log: &[u8], polls: &[(usize, bool)], until: Until) -> String {
    let (mut offset, mut end, mut carried, mut text) = (0, 0, Carried::default(), String::new());
    for (more, crash) in polls {
        end = (end + more).min(log.len());
        let released = masker.release_until(&log[offset..end], LogEnd::Open, carried, until);
        let held = end - offset - usize::try_from(released.log_bytes).unwrap();
        assert!(held <= HELD_MAX_BYTES + 3, "{held} bytes are held");
        if !crash {
            offset = end - held;
            text += &released.text;
            // As it is stored.
            let left = released.carried.unwrap_or(carried);
            carried = Carried::from_words(&left.to_words());
            assert_eq!(carried, left);
        }
    }
    text + &masker
        .release_until(&log[offset..], LogEnd::Reached, carried, until)
        .text
}

fn whole(masker: &Masker, log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log).replace('\0', "\u{FFFD}");
    masker.mask(&text).into_owned()
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    let planted = vec![
        "hunter2-",
        "hunter2",
        "-x",
        "aab",
        "aabaabaab",
        "pass word ä€",
        "😀 end",
        "https://",
        "inner/se",
        "bob:pw@",
        "host",
        "/",
        "?",
        "&",
        "token=",
        "api-key=x",
        "page=1",
        "postgres://u:p@h",
        "HTTP",
        "git+ssh://",
        "Authorization",
        ":",
        " ",
        "\n",
        "Bearer abc",
        "ghp_",
        "a1a1a1a1a1a1a1a1a1a1",
        "sk-",
        "-",
        "_",
        "github_pat_",
        "AKIA",
        "ABCDEFGH",
        "é",
        "desktop.ascii.dev",
        "https://viewer.ascii",
        "\"",
        ".",
        "xoxb-",
        "12345",
        "\0",
        "+",
        "a",
        "@",
    ];
    prop_oneof![
        8 => prop::sample::select(planted).prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
        1 => prop::sample::select(vec![0xE2u8, 0x82, 0xAC, 0xF0, 0x9F]).prop_map(|byte| vec![byte]),
    ]
}

fn log() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(piece(), 0..30).prop_map(|pieces| pieces.concat())
}

/// With parts that go on for more than is held.
fn long_log() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        2 => piece(),
        1 => (piece(), 1usize..9000).prop_map(|(piece, length)| piece.into_iter().cycle().take(length).collect()),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn polls(most: usize) -> impl Strategy<Value = Vec<(usize, bool)>> {
    prop::collection::vec((0..most, any::<bool>()), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_split_of_a_log_gives_the_text_of_the_whole(log in log(), polls in polls(60)) {
        let masker = masker();
        prop_assert_eq!(polled(&masker, &log, &polls, Until::Anything), whole(&masker, &log));
    }

    #[test]
    fn read_byte_by_byte_it_is_the_text_of_the_whole(log in log()) {
        let masker = masker();
        let polls = vec![(1, false); log.len()];
        prop_assert_eq!(polled(&masker, &log, &polls, Until::Anything), whole(&masker, &log));
    }

    /// The words that are let go begin no scheme that is used with a password.
    #[test]
    fn words_that_are_let_go_change_nothing_but_where_they_are_schemes(log in log(), polls in polls(60)) {
        let masker = masker();
        let text = whole(&masker, &log);
        let read = polled(&masker, &log, &polls, Until::Word);
        // Only what is a scheme may remain beside the marker.
        let rest = |text: &str| {
            let plain = text.replace(URL_MARKER, "").replace(MARKER, "");
            plain.replace(|c: char| c.is_ascii_alphanumeric() || "+.-".contains(c), "")
        };
        prop_assert_eq!(rest(&read), rest(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_match_longer_than_what_is_held_is_dropped_to_its_end(log in long_log(), polls in polls(20_000)) {
        let masker = masker();
        prop_assert_eq!(polled(&masker, &log, &polls, Until::Anything), whole(&masker, &log));
    }

    #[test]
    fn a_secret_never_appears_nor_six_bytes_of_it(
        secret in "[!-~]{8,40}|(ab?){8,12}|[ab]{8,12}",
        prefix_length in 8usize..20,
        before in 0usize..3,
        fill in 0usize..9000,
        times in 1usize..400,
        polls in polls(9000),
        lost in any::<bool>(),
    ) {
        let masker = Masker::new([secret.clone(), secret[..prefix_length.min(secret.len())].to_owned()]);
        let log = "#".repeat(before) + &secret.repeat(times) + &"#".repeat(fill) + &secret;
        let released = polled(&masker, log.as_bytes(), &polls, Until::Word);
        for part in secret.as_bytes().windows(6).filter(|part| !part.iter().all(|byte| *byte == b'#')) {
            let part = std::str::from_utf8(part).unwrap();
            prop_assert!(MARKER.contains(part) || !released.contains(part), "{} in {}", part, released);
        }
        if lost {
            let cut = log.len() - 1;
            let released = masker.release(&log.as_bytes()[..cut], LogEnd::Lost, Carried::default());
            prop_assert!(released.text.ends_with(MARKER));
        }
    }
}

#[test]
fn a_secret_split_at_each_byte_is_masked() {
    let token = ghp();
    let long: String = (0..3000u32)
        .map(|n| char::from(b'!' + u8::try_from(n * n % 89).unwrap()))
        .collect();
    let masker = Masker::new(SECRETS.map(str::to_owned).into_iter().chain([long.clone()]));
    let mut texts = vec![
        token,
        long,
        "https://bob:pass@host/".into(),
        "Authorization: Bearer abcdefghi".into(),
    ];
    texts.extend(SECRETS.map(str::to_owned));
    texts.extend(SCHEMES.map(|scheme| format!("{scheme}://bob:secret@h")));
    for secret in texts {
        let log = format!("before {secret}\nafter");
        let expected = masker.mask(&log).into_owned();
        assert!(
            !expected.contains(&secret[secret.ceil_char_boundary(secret.len() / 2)..]),
            "{expected}"
        );
        for cut in 0..log.len() {
            assert_eq!(
                polled(&masker, log.as_bytes(), &[(cut, false)], Until::Word),
                expected,
                "{secret} at {cut}"
            );
        }
    }
}

#[test]
fn what_stays_undecided_for_too_long_counts_as_secret() {
    let masker = Masker::default();
    for (head, shown) in [
        ("https://bob:", "[REDACTED_URL]"),
        ("https://h/?a=", "https://h/?[REDACTED]"),
    ] {
        let log = format!("{head}{} plain", "x".repeat(20_000));
        assert_eq!(masker.mask(&log), format!("{shown} plain"));
        assert_eq!(
            polled(
                &masker,
                log.as_bytes(),
                &[(9000, false), (1, false), (9000, true), (99, false)],
                Until::Word
            ),
            format!("{shown} plain")
        );
    }
}

#[test]
fn the_work_grows_no_faster_than_the_log() {
    let steps = |log: &str| {
        scan::STEPS.set(0);
        std::hint::black_box(masker().mask(log));
        scan::STEPS.get()
    };
    let token = ghp();
    for part in [
        "a",
        "a.",
        "https://",
        "https://u:p@",
        "a://b?",
        "https://h?a&",
        "?a=1&",
        "sk-",
        "github_pat_",
        "xoxb-",
        "aab",
        "hunter2-",
        "authorization:",
        "authorization: x ",
        "a+a+a+a+a://u:",
        &token,
        "https://h/?token=",
        "http:",
        "x:y@",
        "\n",
        "é",
        "a://b:",
    ] {
        let size = 40_000 / part.len();
        let (once, twice) = (steps(&part.repeat(size)), steps(&part.repeat(2 * size)));
        assert!(
            twice <= 3 * once && once < 40 * 40_000,
            "{part}: {once} and {twice} steps"
        );
    }
}

#[test]
fn after_a_skip_the_text_begins_with_a_line_that_no_secret_reaches_into() {
    let key = format!("BEGIN\n{}\nEND", "abcdef\n".repeat(20));
    let masker = Masker::new([key.clone()]);
    let lead = "x".repeat(100) + "\n";
    let log = format!("{lead}{key}\nafter\nhttps://bob:pw@h\n{}", "y\n".repeat(40));
    let released = masker.release(log.as_bytes(), LogEnd::Open, Carried::after_skip());
    assert!(
        log.ends_with(&released.text) || released.text.contains(URL_MARKER),
        "{}",
        released.text
    );
    assert!(!released.text.contains("abcdef") && released.skipped > 0);
    assert_eq!(released.log_bytes, length(log.len()));
    assert!(log.as_bytes()[usize::try_from(released.skipped).unwrap() - 1] == b'\n');
    let one_line = masker.release("x".repeat(500).as_bytes(), LogEnd::Open, Carried::after_skip());
    assert_eq!(
        (one_line.skipped, one_line.text.as_str(), one_line.carried),
        (500, "", Some(Carried::after_skip()))
    );
}
