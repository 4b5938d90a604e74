//! The provider's client against a scripted server: what is sent, how often, and what each kind of silence means.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use boxrun::box_api::{
    BoxClient, BoxClientBuildError, BoxError, BoxErrorCode, BoxState, CommandOutput, Effect, Readiness,
};
use boxrun::ids::BoxId;
use secrecy::SecretString;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::bare_script::bare;
use crate::support::scripted_box::{Answer, KEY, ReplyBody, ScriptedBox};

const LONG: Duration = Duration::from_secs(20);
/// For calls that must run into their deadline, but only after their request has arrived.
const SHORT: Duration = Duration::from_secs(1);

fn box_id() -> BoxId {
    "bx_8bhkse3n".parse().expect("a box id")
}

async fn run(client: &BoxClient, script: &str) -> Result<CommandOutput, BoxError> {
    client
        .run_command(&box_id(), &bare(script, Duration::from_secs(15), LONG))
        .await
}

fn outcome(result: Result<CommandOutput, BoxError>) -> (BoxErrorCode, Effect) {
    let error = result.expect_err("the call fails");
    (error.code, error.effect)
}

#[tokio::test]
async fn a_command_is_posted_with_its_timeout_and_the_key() {
    let server = ScriptedBox::with_script([Answer::stdout("4242\n")]).await;
    let script = "echo 'ü' \"$HOME\" \\\n";
    let output = server
        .client()
        .run_command(&box_id(), &bare(script, Duration::from_millis(14_001), LONG))
        .await
        .unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.exit_code, output.stdout_truncated),
        ("4242\n", Some(0), false)
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].method.as_str(), requests[0].path.as_str()),
        ("POST", "/boxes/bx_8bhkse3n/commands")
    );
    assert_eq!(requests[0].command.as_deref(), Some(script));
    assert_eq!(requests[0].timeout_seconds, Some(15), "whole seconds, rounded up");
    assert_eq!(requests[0].authorization, Some(format!("Bearer {KEY}")));
}

#[tokio::test]
async fn the_path_of_the_api_is_kept() {
    for path in ["api/box/v1", "api/box/v1/"] {
        let server = ScriptedBox::start().await;
        let url = server.url().join(path).unwrap();
        let client = BoxClient::new(url, Some(SecretString::from(KEY))).unwrap();
        client.get_box(&box_id()).await.unwrap();
        assert_eq!(server.requests()[0].path, "/api/box/v1/boxes/bx_8bhkse3n");
        assert_eq!(client.origin(), server.url().origin().ascii_serialization());
    }
}

#[test]
fn the_origin_leaves_out_the_default_port_and_the_path() {
    let client = BoxClient::new("https://ascii.dev:443/api/box/v1".parse().unwrap(), None).unwrap();
    assert_eq!(client.origin(), "https://ascii.dev");
}

#[test]
fn an_unsuitable_address_or_key_is_refused_when_building() {
    for url in [
        "ftp://ascii.dev",
        "https://user@ascii.dev",
        "https://u:p@ascii.dev",
        "https://ascii.dev/?a=b",
        "unix:/a",
    ] {
        let result = BoxClient::new(url.parse().unwrap(), None);
        assert!(matches!(result, Err(BoxClientBuildError::UnsuitableUrl)), "{url}");
    }
    let result = BoxClient::new(
        "http://127.0.0.1".parse().unwrap(),
        Some(SecretString::from("line\nbreak")),
    );
    assert!(matches!(result, Err(BoxClientBuildError::UnsuitableKey)));
}

#[tokio::test]
async fn without_a_key_nothing_is_sent() {
    for key in [None, Some(SecretString::from(" "))] {
        let server = ScriptedBox::start().await;
        let client = BoxClient::new(server.url(), key).unwrap();
        assert_eq!(
            outcome(run(&client, "true").await),
            (BoxErrorCode::BoxNotConfigured, Effect::MaySendAgain)
        );
        let error = client.get_box(&box_id()).await.unwrap_err();
        assert_eq!(error.code, BoxErrorCode::BoxNotConfigured);
        assert_eq!(server.requests(), []);
    }
}

#[tokio::test]
async fn a_command_on_a_kept_alive_connection_that_breaks_is_sent_once() {
    let server = ScriptedBox::with_script([Answer::stdout(""), Answer::broken(), Answer::stdout("replayed")]).await;
    let client = server.client();
    run(&client, "first").await.unwrap();
    assert_eq!(
        outcome(run(&client, "second").await),
        (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun)
    );
    let requests = server.requests();
    assert_eq!(
        requests[0].connection, requests[1].connection,
        "the connection was kept alive"
    );
    assert_eq!(server.commands(), ["first", "second"]);
    assert_eq!(server.answers_left(), 1);
}

#[tokio::test]
async fn a_command_on_a_new_connection_that_breaks_is_sent_once() {
    let server = ScriptedBox::with_script([Answer::broken(), Answer::stdout("replayed")]).await;
    assert_eq!(
        outcome(run(&server.client(), "only").await),
        (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun)
    );
    assert_eq!(server.commands(), ["only"]);
}

#[tokio::test]
async fn a_command_can_have_a_connection_of_its_own() {
    let server = ScriptedBox::with_script([Answer::stdout(""), Answer::stdout(""), Answer::stdout("")]).await;
    let client = server.client();
    run(&client, "pooled").await.unwrap();
    for _ in 0..2 {
        client
            .run_command_on_new_connection(&box_id(), &bare("own", Duration::from_secs(1), LONG))
            .await
            .unwrap();
    }
    let connections: Vec<_> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [0, 1, 2]);
}

#[tokio::test]
async fn no_redirect_is_followed() {
    for status in [301, 302, 303, 307, 308] {
        let moved = Answer::status(status, &json!({})).with_header("location", "/elsewhere");
        let server = ScriptedBox::with_script([moved]).await;
        assert_eq!(
            outcome(run(&server.client(), "true").await),
            (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun)
        );
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_refused_connection_may_be_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = BoxClient::new(url.parse().unwrap(), Some(SecretString::from(KEY))).unwrap();
    let error = run(&client, "true").await.unwrap_err();
    assert_eq!(
        (error.code, error.effect),
        (BoxErrorCode::BoxUnreachable, Effect::MaySendAgain)
    );
    assert!(error.detail.contains("refused"), "{}", error.detail);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_may_be_sent_again() {
    let url = "http://no-such-host.invalid".parse().unwrap();
    let client = BoxClient::new(url, Some(SecretString::from(KEY))).unwrap();
    assert_eq!(
        outcome(run(&client, "true").await),
        (BoxErrorCode::BoxUnreachable, Effect::MaySendAgain)
    );
}

#[tokio::test]
async fn a_failed_tls_handshake_may_be_sent_again() {
    let server = ScriptedBox::start().await;
    let mut url = server.url();
    url.set_scheme("https").unwrap();
    // On a machine without any certificate there is no TLS client at all.
    let Ok(client) = BoxClient::new(url, Some(SecretString::from(KEY))) else {
        return;
    };
    assert_eq!(
        outcome(run(&client, "true").await),
        (BoxErrorCode::BoxUnreachable, Effect::MaySendAgain)
    );
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_may_have_run() {
    let server = ScriptedBox::with_script([Answer::hang()]).await;
    let result = server
        .client()
        .run_command(&box_id(), &bare("true", Duration::from_secs(1), SHORT))
        .await;
    assert_eq!(outcome(result), (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun));
    server.wait_for_requests(1).await;
    server.release();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_body_that_stalls_ends_at_the_deadline() {
    let stalled = Answer::unfinished(ReplyBody::Stalled("{\"ok\":true".to_owned()));
    let server = ScriptedBox::with_script([stalled]).await;
    let result = server
        .client()
        .run_command(&box_id(), &bare("true", Duration::from_secs(1), SHORT))
        .await;
    assert_eq!(outcome(result), (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun));
}

#[tokio::test]
async fn a_body_that_never_ends_is_read_up_to_its_limit() {
    let whole = Answer::raw(200, "application/json", " ".repeat(4 * 1024 * 1024 + 1));
    let server = ScriptedBox::with_script([Answer::unfinished(ReplyBody::Endless), whole]).await;
    for _ in 0..2 {
        let result = run(&server.client(), "true").await;
        assert_eq!(outcome(result), (BoxErrorCode::BoxResponseInvalid, Effect::MayHaveRun));
    }
}

#[tokio::test]
async fn answers_that_are_of_no_use_may_have_run() {
    let html = "<html>Welcome</html>";
    for answer in [
        Answer::raw(200, "text/html", html),
        Answer::raw(404, "text/html", html),
        Answer::raw(200, "application/json", ""),
        Answer::raw(200, "application/json", "[1]"),
        Answer::raw(200, "application/json", "{\"ok\":true,\"stdout\":\"42"),
        Answer::finished(&json!({ "ok": false })),
        Answer::finished(&json!({ "timedOut": true })),
        Answer::finished(&json!({ "stdout": 42 })),
    ] {
        let server = ScriptedBox::with_script([answer.clone()]).await;
        let result = run(&server.client(), "true").await;
        assert_eq!(
            outcome(result),
            (BoxErrorCode::BoxResponseInvalid, Effect::MayHaveRun),
            "{answer:?}"
        );
        assert_eq!(server.requests().len(), 1, "{answer:?}");
    }
}

#[tokio::test]
async fn retry_after_comes_as_seconds_or_date() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let limited =
        |value: &str| Answer::status(429, &json!({ "code": "rate_limited" })).with_header("retry-after", value);
    let server = ScriptedBox::with_script([limited("7"), limited(&date), limited("-1")]).await;
    for expected in [Some(7), Some(60), None] {
        let error = run(&server.client(), "true").await.unwrap_err();
        assert_eq!(
            (error.code, error.effect),
            (BoxErrorCode::BoxRateLimited, Effect::MaySendAgain)
        );
        assert_eq!(error.retry_after, expected.map(Duration::from_secs));
    }
}

#[tokio::test]
async fn a_box_is_asked_for_three_times() {
    let server = ScriptedBox::start().await;
    server.answer_gets(Answer::raw(502, "text/html", "bad gateway"));
    let error = server.client().get_box(&box_id()).await.unwrap_err();
    assert_eq!(error.code, BoxErrorCode::BoxUnreachable);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_box_that_answers_at_the_third_try_is_read() {
    let server = ScriptedBox::start().await;
    let tries = std::sync::atomic::AtomicUsize::new(0);
    server.answer_by(
        move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Answer::broken(),
            1 => Answer::raw(200, "text/html", "maintenance"),
            _ => Answer::box_state("bx_8bhkse3n", "idle"),
        },
    );
    let info = server.client().get_box(&box_id()).await.unwrap();
    assert_eq!(
        (info.id.clone(), info.state, info.readiness()),
        (box_id(), BoxState::Idle, Readiness::Ready)
    );
}

#[tokio::test]
async fn a_refusal_is_not_asked_for_again() {
    let server = ScriptedBox::start().await;
    for (status, body, code) in [
        (401, json!({}), BoxErrorCode::BoxUnauthorized),
        (404, json!({ "code": "box_not_found" }), BoxErrorCode::BoxNotFound),
        (429, json!({}), BoxErrorCode::BoxRateLimited),
    ] {
        let before = server.requests().len();
        server.answer_gets(Answer::status(status, &body));
        assert_eq!(server.client().get_box(&box_id()).await.unwrap_err().code, code);
        assert_eq!(server.requests().len(), before + 1, "{status}");
    }
}

#[tokio::test]
async fn an_answer_about_another_box_is_refused() {
    let server = ScriptedBox::start().await;
    server.answer_gets(Answer::box_state("bx_22222222", "ready"));
    let error = server.client().get_box(&box_id()).await.unwrap_err();
    assert_eq!(error.code, BoxErrorCode::BoxResponseInvalid);
}

#[tokio::test]
async fn the_key_is_in_no_debug_text_and_no_error() {
    let server = ScriptedBox::with_script([Answer::broken(), Answer::status(401, &json!({ "code": KEY }))]).await;
    let client = server.client();
    assert!(!format!("{client:?}").contains(KEY));
    for _ in 0..2 {
        let error = run(&client, "true").await.unwrap_err();
        assert!(!format!("{error:?} {error}").contains(KEY), "{error:?}");
    }
}

#[tokio::test]
async fn an_announced_end_of_the_api_is_logged_once_and_the_key_never() {
    let log = Log::default();
    let into = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || into.clone());
    // For this thread, on which the whole test runs.
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let ending = || Answer::stdout("").with_header("sunset", "Sat, 31 Dec 2033 23:59:59 GMT");
    let server = ScriptedBox::with_script([ending(), ending(), Answer::status(401, &json!({}))]).await;
    let client = server.client();
    for _ in 0..3 {
        let _ = run(&client.clone(), "true").await;
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("31 Dec 2033").count(), 1, "{text}");
    assert!(!text.contains(KEY), "{text}");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
