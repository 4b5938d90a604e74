//! Which path means what.

use hyper::Method;

use super::detached::Pid;
use crate::ids::BoxId;

/// A path of the provider may stand below this.
const API_PREFIX: &str = "/api/box/v1";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    Info(BoxId),
    Command(BoxId),
    CommandStatus(BoxId, Pid),
    Admin(AdminCall),
    /// The text where an id should be is none.
    NoSuchBox,
    /// As above, of a detached command.
    NoSuchProcess,
    WrongMethod,
    Unknown,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AdminCall {
    Record,
    Faults,
    AddFault,
    ClearFaults,
    ShowBox(BoxId),
    SetBox(BoxId),
    StopBox(BoxId),
    RestartBox(BoxId),
    ResumeBox(BoxId),
}

pub(super) fn route(method: &Method, path: &str) -> Route {
    let path = path.strip_prefix(API_PREFIX).unwrap_or(path);
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    match segments.as_slice() {
        ["boxes", id] => on_box(id, method == Method::GET, Route::Info),
        ["boxes", id, "commands"] => on_box(id, method == Method::POST, Route::Command),
        ["boxes", id, "commands", pid] => on_box(id, method == Method::GET, |id| match pid.parse() {
            Ok(pid) => Route::CommandStatus(id, pid),
            Err(_) => Route::NoSuchProcess,
        }),
        ["_sim", rest @ ..] => admin(method, rest),
        _ => Route::Unknown,
    }
}

fn admin(method: &Method, segments: &[&str]) -> Route {
    let on = |id: &str, call: fn(BoxId) -> AdminCall| on_box(id, true, |id| Route::Admin(call(id)));
    match (method.as_str(), segments) {
        ("GET", ["record"]) => Route::Admin(AdminCall::Record),
        ("GET", ["faults"]) => Route::Admin(AdminCall::Faults),
        ("POST", ["faults"]) => Route::Admin(AdminCall::AddFault),
        ("DELETE", ["faults"]) => Route::Admin(AdminCall::ClearFaults),
        ("GET", ["boxes", id]) => on(id, AdminCall::ShowBox),
        ("PUT", ["boxes", id]) => on(id, AdminCall::SetBox),
        ("POST", ["boxes", id, "stop"]) => on(id, AdminCall::StopBox),
        ("POST", ["boxes", id, "restart"]) => on(id, AdminCall::RestartBox),
        ("POST", ["boxes", id, "resume"]) => on(id, AdminCall::ResumeBox),
        (_, ["record" | "faults"] | ["boxes", _] | ["boxes", _, "stop" | "restart" | "resume"]) => Route::WrongMethod,
        _ => Route::Unknown,
    }
}

fn on_box(id: &str, right_method: bool, make: impl FnOnce(BoxId) -> Route) -> Route {
    match (right_method, id.parse()) {
        (false, _) => Route::WrongMethod,
        (true, Ok(id)) => make(id),
        (true, Err(_)) => Route::NoSuchBox,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        let id: BoxId = "bx_8bhkse3n".parse().unwrap();
        for (method, path, expected) in [
            ("GET", "/boxes/bx_8bhkse3n", Route::Info(id.clone())),
            ("GET", "/api/box/v1/boxes/bx_8bhkse3n", Route::Info(id.clone())),
            ("POST", "/boxes/bx_8bhkse3n/commands", Route::Command(id.clone())),
            ("GET", "/boxes/bx_8bhkse3n/commands", Route::WrongMethod),
            (
                "GET",
                "/boxes/bx_8bhkse3n/commands/42",
                Route::CommandStatus(id.clone(), 42),
            ),
            ("GET", "/boxes/bx_8bhkse3n/commands/x", Route::NoSuchProcess),
            ("POST", "/boxes/bx_8bhkse3n/commands/42", Route::WrongMethod),
            ("GET", "/boxes/../etc", Route::Unknown),
            ("GET", "/boxes/..", Route::NoSuchBox),
            ("GET", "/boxes/bx_8bhkse3n/", Route::Unknown),
            ("GET", "/", Route::Unknown),
            ("GET", "/_sim/record", Route::Admin(AdminCall::Record)),
            ("POST", "/_sim/record", Route::WrongMethod),
            (
                "POST",
                "/_sim/boxes/bx_8bhkse3n/stop",
                Route::Admin(AdminCall::StopBox(id.clone())),
            ),
            ("PUT", "/_sim/boxes/bx_8bhkse3n", Route::Admin(AdminCall::SetBox(id))),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(route(&method, path), expected, "{method} {path}");
        }
    }
}
