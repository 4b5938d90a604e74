use serde_json::json;

use super::*;
use BoxErrorCode::*;
use Effect::*;

fn answer(status: u16, body: Result<Value, BodyFault>) -> Answer {
    let body = body.map(|value| value.as_object().expect("a test body is an object").clone());
    Answer {
        status,
        retry_after: None,
        body,
    }
}

#[test]
fn each_row_of_the_error_table() {
    let html = || Err(BodyFault::NotJson);
    let code = |code: &str| Ok(json!({ "code": code }));
    let nested = |code: &str| Ok(json!({ "error": { "code": code, "details": {} } }));
    let rows = [
        (401, code("unauthorized"), BoxUnauthorized, MaySendAgain),
        (401, html(), BoxUnauthorized, MaySendAgain),
        (401, Err(BodyFault::DeadlinePassed), BoxUnauthorized, MaySendAgain),
        (402, html(), BoxBillingRequired, MaySendAgain),
        (403, code("billing"), BoxBillingRequired, MaySendAgain),
        (404, code("box_not_found"), BoxNotFound, DidNotRun),
        (404, nested("box_not_found"), BoxNotFound, DidNotRun),
        (404, html(), BoxResponseInvalid, MayHaveRun),
        (404, Ok(json!({})), BoxResponseInvalid, MayHaveRun),
        (404, Ok(json!({ "code": 404 })), BoxResponseInvalid, MayHaveRun),
        (404, Ok(json!({ "code": "" })), BoxResponseInvalid, MayHaveRun),
        (404, Ok(json!({ "error": "not found" })), BoxResponseInvalid, MayHaveRun),
        (404, Err(BodyFault::NotAnObject), BoxResponseInvalid, MayHaveRun),
        (404, Err(BodyFault::Broken), BoxResponseInvalid, MayHaveRun),
        (409, code("box_starting"), BoxNotReady, MaySendAgain),
        (409, nested("box_starting"), BoxNotReady, MaySendAgain),
        (409, code("box_stopped"), BoxStopped, DidNotRun),
        (409, nested("box_stopped"), BoxStopped, DidNotRun),
        (409, code("box_gone"), BoxGone, DidNotRun),
        (409, code("something_else"), BoxRequestRefused, DidNotRun),
        (409, html(), BoxResponseInvalid, MayHaveRun),
        (429, html(), BoxRateLimited, MaySendAgain),
        (429, code("rate_limited"), BoxRateLimited, MaySendAgain),
        (400, code("invalid_request"), BoxRequestRefused, DidNotRun),
        (400, html(), BoxResponseInvalid, MayHaveRun),
        (413, nested("too_large"), BoxRequestRefused, DidNotRun),
        (422, code("invalid_request"), BoxRequestRefused, DidNotRun),
        (408, code("timeout"), BoxUnreachable, MayHaveRun),
        (425, code("too_early"), BoxUnreachable, MayHaveRun),
        (499, code("closed"), BoxUnreachable, MayHaveRun),
        (301, html(), BoxUnreachable, MayHaveRun),
        (307, code("moved"), BoxUnreachable, MayHaveRun),
        (500, code("internal"), BoxUnreachable, MayHaveRun),
        (502, html(), BoxUnreachable, MayHaveRun),
        (503, Ok(json!({ "code": "box_stopped" })), BoxUnreachable, MayHaveRun),
        (599, html(), BoxUnreachable, MayHaveRun),
        (200, html(), BoxResponseInvalid, MayHaveRun),
        (204, html(), BoxResponseInvalid, MayHaveRun),
        (200, Err(BodyFault::NotAnObject), BoxResponseInvalid, MayHaveRun),
        (200, Err(BodyFault::TooLarge), BoxResponseInvalid, MayHaveRun),
        (200, Err(BodyFault::Broken), BoxUnreachable, MayHaveRun),
        (200, Err(BodyFault::DeadlinePassed), BoxUnreachable, MayHaveRun),
        (
            200,
            Ok(json!({ "ok": false, "status": 409, "code": "box_stopped" })),
            BoxResponseInvalid,
            MayHaveRun,
        ),
        (200, Ok(json!({ "ok": "yes" })), BoxResponseInvalid, MayHaveRun),
        (
            200,
            Ok(json!({ "ok": true, "timedOut": true })),
            BoxResponseInvalid,
            MayHaveRun,
        ),
        (
            200,
            Ok(json!({ "ok": true, "timedOut": "no" })),
            BoxResponseInvalid,
            MayHaveRun,
        ),
    ];
    for (status, body, code, effect) in rows {
        let described = format!("{status} {body:?}");
        let error = judge(answer(status, body)).expect_err(&described);
        assert_eq!((error.code, error.effect), (code, effect), "{described}");
    }
}

#[test]
fn a_2xx_object_that_does_not_object_is_a_success() {
    for body in [
        json!({}),
        json!({ "ok": true }),
        json!({ "ok": null, "timedOut": null }),
        json!({ "timedOut": false }),
    ] {
        assert!(judge(answer(200, Ok(body.clone()))).is_ok(), "{body}");
    }
}

#[test]
fn only_a_connection_that_never_opened_may_send_again() {
    for (failure, effect) in [
        (TransportFailure::NeverOpened, MaySendAgain),
        (TransportFailure::DeadlinePassed, MayHaveRun),
        (TransportFailure::Broken, MayHaveRun),
    ] {
        let error = judge_transport_failure(failure, "");
        assert_eq!((error.code, error.effect), (BoxUnreachable, effect), "{failure:?}");
    }
}

#[test]
fn retry_after_is_kept_on_every_error_status() {
    for status in [409, 429, 503] {
        let wait = Some(Duration::from_secs(3));
        let error = judge(Answer {
            status,
            retry_after: wait,
            body: Err(BodyFault::NotJson),
        })
        .unwrap_err();
        assert_eq!(error.retry_after, wait, "{status}");
    }
}

#[test]
fn the_detail_names_code_and_request_but_no_free_text() {
    let body = json!({ "code": "box_starting", "requestId": "req-1", "message": "secret text" });
    let error = judge(answer(409, Ok(body))).unwrap_err();
    assert_eq!(error.detail, "the provider answered 409 box_starting, request req-1");
    let body = json!({ "code": "<script>alert(1)</script>" });
    let error = judge(answer(400, Ok(body))).unwrap_err();
    assert_eq!(error.detail, "the provider answered 400");
}
