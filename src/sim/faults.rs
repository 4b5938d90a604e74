//! How the simulator misbehaves: rules, which of them applies to a request, and what that means for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::reply::Reply;
use super::request_kind::RequestKind;
use crate::ids::BoxId;

/// One way to misbehave, for some requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRule {
    pub fault: Fault,
    #[serde(default)]
    pub on: FaultTarget,
    /// Absent: every box.
    #[serde(default, rename = "box")]
    pub box_id: Option<BoxId>,
    /// How often at most. Absent: once, or without end when there is a probability.
    #[serde(default)]
    pub times: Option<u32>,
    /// 0 ‥ 1, per request that matches. Absent: always.
    #[serde(default)]
    pub probability: Option<f64>,
    /// The same seed and the same order of requests give the same faults.
    #[serde(default)]
    pub seed: u64,
}

impl FaultRule {
    /// This fault, at the next request that is `on`.
    #[must_use]
    pub fn once(on: FaultTarget, fault: Fault) -> Self {
        Self {
            fault,
            on,
            box_id: None,
            times: Some(1),
            probability: None,
            seed: 0,
        }
    }
}

/// Which requests a rule is for; a command's kind is known by the markers in its script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultTarget {
    #[default]
    Any,
    Info,
    /// The status of a detached command.
    Status,
    /// Any command.
    Command,
    Dispatch,
    Probe,
    Poll,
    Stop,
    Cleanup,
    /// A command that is none of boxrun's.
    Other,
}

impl FaultTarget {
    fn includes(self, kind: RequestKind) -> bool {
        match self {
            Self::Any => true,
            Self::Info => kind == RequestKind::Info,
            Self::Status => kind == RequestKind::Status,
            Self::Command => kind != RequestKind::Info && kind != RequestKind::Status,
            Self::Dispatch => kind == RequestKind::Dispatch,
            Self::Probe => kind == RequestKind::Probe,
            Self::Poll => kind == RequestKind::Poll,
            Self::Stop => kind == RequestKind::Stop,
            Self::Cleanup => kind == RequestKind::Cleanup,
            Self::Other => kind == RequestKind::Other,
        }
    }
}

/// Whether the work of a request that is answered wrongly is done all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    #[default]
    NotDone,
    Done,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// The request is taken up only after this time; then all is well.
    Latency { ms: u64 },
    /// The work is done at once, its answer held back for this time.
    SlowAnswer { ms: u64 },
    /// The work is done, the connection closed without a byte.
    LostAnswer,
    /// The connection is closed without a byte, and nothing is done.
    DroppedRequest,
    /// 429; `retry_after` goes out as it is.
    RateLimited {
        #[serde(default)]
        retry_after: Option<String>,
    },
    /// 409 `box_starting`.
    BoxStarting,
    /// 500 ‥ 599 with a JSON error.
    ServerError {
        status: u16,
        #[serde(default)]
        work: Work,
    },
    /// A page of HTML with 200.
    Html {
        #[serde(default)]
        work: Work,
    },
    /// A page of HTML with 404, as of a load balancer that has lost its way; nothing is done.
    NotFoundPage,
    /// The work is done, half of the JSON arrives.
    TruncatedBody,
    /// 502 at once; the command runs this much later all the same.
    DelayedDelivery { ms: u64 },
}

/// The rule can't be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFaultRule {
    #[error("probability must be between 0 and 1")]
    Probability,
    #[error("status must be between 500 and 599")]
    Status,
}

/// What becomes of one request.
#[derive(Debug)]
pub(super) struct Course {
    /// Before the work.
    pub latency: Duration,
    pub work: WorkTime,
    /// After the work, before its answer.
    pub hold: Duration,
    pub ending: Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkTime {
    Never,
    BeforeTheAnswer,
    AfterTheAnswer { delay: Duration },
}

#[derive(Debug)]
pub(super) enum Ending {
    TrueAnswer,
    HalfTheTrueAnswer,
    Instead(Reply),
    ConnectionClosed,
}

impl Fault {
    /// What a request goes through that meets this fault, or none.
    pub(super) fn course(fault: Option<&Self>) -> Course {
        let at_once = |work, ending| Course {
            latency: Duration::ZERO,
            work,
            hold: Duration::ZERO,
            ending,
        };
        let Some(fault) = fault else {
            return at_once(WorkTime::BeforeTheAnswer, Ending::TrueAnswer);
        };
        match fault {
            Self::Latency { ms } => Course {
                latency: Duration::from_millis(*ms),
                ..at_once(WorkTime::BeforeTheAnswer, Ending::TrueAnswer)
            },
            Self::SlowAnswer { ms } => Course {
                hold: Duration::from_millis(*ms),
                ..at_once(WorkTime::BeforeTheAnswer, Ending::TrueAnswer)
            },
            Self::LostAnswer => at_once(WorkTime::BeforeTheAnswer, Ending::ConnectionClosed),
            Self::DroppedRequest => at_once(WorkTime::Never, Ending::ConnectionClosed),
            Self::RateLimited { retry_after } => {
                let reply = Reply::error(429, "rate_limited", "too many requests");
                at_once(
                    WorkTime::Never,
                    Ending::Instead(reply.with_retry_after(retry_after.as_deref())),
                )
            }
            Self::BoxStarting => at_once(
                WorkTime::Never,
                Ending::Instead(Reply::error(409, "box_starting", "the box is starting")),
            ),
            Self::ServerError { status, work } => at_once((*work).into(), Ending::Instead(Reply::gateway(*status))),
            Self::Html { work } => at_once((*work).into(), Ending::Instead(Reply::page(StatusCode::OK))),
            Self::NotFoundPage => at_once(WorkTime::Never, Ending::Instead(Reply::page(StatusCode::NOT_FOUND))),
            Self::TruncatedBody => at_once(WorkTime::BeforeTheAnswer, Ending::HalfTheTrueAnswer),
            Self::DelayedDelivery { ms } => at_once(
                WorkTime::AfterTheAnswer {
                    delay: Duration::from_millis(*ms),
                },
                Ending::Instead(Reply::gateway(502)),
            ),
        }
    }
}

impl From<Work> for WorkTime {
    fn from(work: Work) -> Self {
        match work {
            Work::NotDone => Self::Never,
            Work::Done => Self::BeforeTheAnswer,
        }
    }
}

/// The rules in force.
#[derive(Default)]
pub(super) struct Faults {
    rules: Mutex<Vec<ArmedRule>>,
}

struct ArmedRule {
    rule: FaultRule,
    /// None: without end.
    times_left: Option<u32>,
    randomness: StdRng,
}

impl Faults {
    pub fn add(&self, rule: FaultRule) -> Result<(), InvalidFaultRule> {
        if rule
            .probability
            .is_some_and(|probability| !(0.0..=1.0).contains(&probability))
        {
            return Err(InvalidFaultRule::Probability);
        }
        if let Fault::ServerError { status, .. } = rule.fault
            && !(500..=599).contains(&status)
        {
            return Err(InvalidFaultRule::Status);
        }
        let times_left = rule.times.or(if rule.probability.is_some() { None } else { Some(1) });
        let randomness = StdRng::seed_from_u64(rule.seed);
        self.lock().push(ArmedRule {
            rule,
            times_left,
            randomness,
        });
        Ok(())
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    /// The rules that can still strike, with the times that they have left.
    pub fn list(&self) -> Vec<FaultRule> {
        let rules = self.lock();
        rules
            .iter()
            .map(|armed| FaultRule {
                times: armed.times_left,
                ..armed.rule.clone()
            })
            .collect()
    }

    /// The fault that this request meets: that of the oldest rule that matches and whose dice agree.
    pub fn strike(&self, kind: RequestKind, id: &BoxId) -> Option<Fault> {
        let mut rules = self.lock();
        let struck = rules.iter_mut().find_map(|armed| armed.strike(kind, id));
        rules.retain(|armed| armed.times_left != Some(0));
        struck
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ArmedRule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArmedRule {
    fn strike(&mut self, kind: RequestKind, id: &BoxId) -> Option<Fault> {
        let matches = self.rule.on.includes(kind) && self.rule.box_id.as_ref().is_none_or(|only| only == id);
        if !matches || self.times_left == Some(0) {
            return None;
        }
        let strikes = self
            .rule
            .probability
            .is_none_or(|probability| self.randomness.random_bool(probability));
        if !strikes {
            return None;
        }
        self.times_left = self.times_left.map(|times| times - 1);
        Some(self.rule.fault.clone())
    }
}

#[cfg(test)]
#[path = "faults_tests.rs"]
mod tests;
