//! The fields of the two good answers. Absent and null are the same; a field of the wrong type makes the whole answer invalid.

use serde_json::Value;

use super::error_table::{Object, invalid};
use super::{BoxInfo, BoxState, CommandOutput};
use crate::box_api::error::BoxError;
use crate::ids::BoxId;

/// Reads `command.finished`; every field may be missing.
pub(super) fn command_output(object: &Object) -> Result<CommandOutput, BoxError> {
    Ok(CommandOutput {
        stdout: text(object, "stdout")?.unwrap_or_default().to_owned(),
        stderr: text(object, "stderr")?.unwrap_or_default().to_owned(),
        exit_code: integer(object, "exitCode")?,
        stdout_truncated: flag(object, "stdoutTruncated")?.unwrap_or(false),
    })
}

/// Reads `box.info`, wrapped or bare, and insists that it is about `asked`: a mixed-up answer must not admit a run.
pub(super) fn box_info(object: &Object, asked: &BoxId) -> Result<BoxInfo, BoxError> {
    let object = match object.get("box") {
        None | Some(Value::Null) => object,
        Some(Value::Object(inner)) => inner,
        Some(_) => return Err(wrong_type("box")),
    };
    if text(object, "id")? != Some(asked.as_str()) {
        return Err(invalid(format!("the answer is not about the box {asked}")));
    }
    Ok(BoxInfo {
        id: asked.clone(),
        name: text(object, "name")?.map(str::to_owned),
        state: text(object, "state")?.map_or(BoxState::Unknown, BoxState::from_provider),
        setup_status: text(object, "setupStatus")?.map(str::to_owned),
    })
}

fn text<'a>(object: &'a Object, field: &'static str) -> Result<Option<&'a str>, BoxError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(wrong_type(field)),
    }
}

fn integer(object: &Object, field: &'static str) -> Result<Option<i64>, BoxError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(field)),
    }
}

fn flag(object: &Object, field: &'static str) -> Result<Option<bool>, BoxError> {
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(|| wrong_type(field)),
    }
}

fn wrong_type(field: &'static str) -> BoxError {
    invalid(format!("the answer's field {field} has the wrong type"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::box_api::client::Readiness;
    use crate::box_api::error::{BoxErrorCode, Effect};

    fn object(value: &Value) -> Object {
        value.as_object().expect("an object").clone()
    }

    fn asked() -> BoxId {
        "bx_8bhkse3n".parse().unwrap()
    }

    #[test]
    fn missing_fields_of_a_finished_command_have_defaults() {
        let output = command_output(&object(&json!({ "stdout": null }))).unwrap();
        assert_eq!(
            output,
            CommandOutput {
                stdout: String::new(),
                stderr: String::new(),
                exit_code: None,
                stdout_truncated: false
            }
        );
        let output = command_output(&object(
            &json!({ "stdout": "a", "exitCode": 73, "stdoutTruncated": true }),
        ))
        .unwrap();
        assert_eq!(
            (output.stdout.as_str(), output.exit_code, output.stdout_truncated),
            ("a", Some(73), true)
        );
    }

    #[test]
    fn a_field_of_the_wrong_type_makes_the_answer_invalid() {
        for body in [
            json!({ "stdout": 1 }),
            json!({ "stdout": ["x"] }),
            json!({ "stderr": {} }),
            json!({ "exitCode": "0" }),
            json!({ "exitCode": 0.5 }),
            json!({ "stdoutTruncated": "false" }),
        ] {
            let error = command_output(&object(&body)).expect_err(&body.to_string());
            assert_eq!(
                (error.code, error.effect),
                (BoxErrorCode::BoxResponseInvalid, Effect::MayHaveRun),
                "{body}"
            );
        }
    }

    #[test]
    fn a_box_is_read_wrapped_and_bare() {
        let bare = json!({ "id": "bx_8bhkse3n", "state": "idle", "setupStatus": "done", "name": "a" });
        for body in [json!({ "ok": true, "type": "box.info", "box": bare.clone() }), bare] {
            let info = box_info(&object(&body), &asked()).unwrap();
            assert_eq!(
                (info.state, info.setup_status.as_deref()),
                (BoxState::Idle, Some("done")),
                "{body}"
            );
        }
    }

    #[test]
    fn an_answer_about_another_box_is_invalid() {
        for body in [
            json!({ "box": { "id": "bx_22222222", "state": "ready" } }),
            json!({ "box": { "state": "ready" } }),
            json!({ "box": "bx_8bhkse3n" }),
            json!({ "box": { "id": "bx_8bhkse3n", "state": 3 } }),
            json!({}),
        ] {
            let error = box_info(&object(&body), &asked()).expect_err(&body.to_string());
            assert_eq!(error.code, BoxErrorCode::BoxResponseInvalid, "{body}");
        }
    }

    #[test]
    fn readiness_is_what_admission_decides_by() {
        use Readiness::{Ready, Starting, Stopped};
        for (state, setup, expected) in [
            ("ready", None, Ready),
            ("ready", Some("done"), Ready),
            ("ready", Some("none"), Ready),
            ("ready", Some("running"), Starting),
            ("ready", Some("failed"), Starting),
            ("idle", None, Ready),
            ("running", Some("done"), Ready),
            ("init", None, Starting),
            ("provisioning", None, Starting),
            ("provisioned", None, Starting),
            ("cloning", None, Starting),
            ("archiving", None, Stopped),
            ("archived", Some("running"), Stopped),
            ("error", None, Starting),
            ("a new state", None, Starting),
        ] {
            let body = json!({ "id": "bx_8bhkse3n", "state": state, "setupStatus": setup });
            let info = box_info(&object(&body), &asked()).unwrap();
            assert_eq!(info.readiness(), expected, "{state} {setup:?}");
        }
    }
}
