use super::*;

fn id(text: &str) -> BoxId {
    text.parse().unwrap()
}

fn rule(json: serde_json::Value) -> FaultRule {
    serde_json::from_value(json).unwrap()
}

#[test]
fn a_rule_strikes_only_its_target_and_box_and_only_so_often() {
    let faults = Faults::default();
    let (ours, other) = (id("bx_22222222"), id("bx_33333333"));
    faults
        .add(rule(
            serde_json::json!({ "fault": { "kind": "lost_answer" }, "on": "poll", "box": ours, "times": 2 }),
        ))
        .unwrap();
    assert_eq!(faults.strike(RequestKind::Dispatch, &ours), None);
    assert_eq!(faults.strike(RequestKind::Poll, &other), None);
    assert_eq!(faults.strike(RequestKind::Poll, &ours), Some(Fault::LostAnswer));
    assert_eq!(faults.list()[0].times, Some(1));
    assert_eq!(faults.strike(RequestKind::Poll, &ours), Some(Fault::LostAnswer));
    assert_eq!(faults.strike(RequestKind::Poll, &ours), None);
    assert_eq!(faults.list(), []);
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let strikes = |seed: u64| {
        let faults = Faults::default();
        faults
            .add(rule(
                serde_json::json!({ "fault": { "kind": "box_starting" }, "probability": 0.5, "seed": seed }),
            ))
            .unwrap();
        let box_id = id("bx_22222222");
        (0..64)
            .map(|_| faults.strike(RequestKind::Poll, &box_id).is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(strikes(7), strikes(7));
    assert_ne!(strikes(7), strikes(8));
    let share = strikes(7).iter().filter(|strikes| **strikes).count();
    assert!((10..54).contains(&share), "{share} of 64");
}

#[test]
fn rules_out_of_range_are_refused() {
    let faults = Faults::default();
    for probability in [-0.1, 1.1, f64::NAN] {
        let mut rule = FaultRule::once(FaultTarget::Any, Fault::LostAnswer);
        rule.probability = Some(probability);
        assert_eq!(faults.add(rule), Err(InvalidFaultRule::Probability));
    }
    for status in [200, 404, 600] {
        let rule = FaultRule::once(
            FaultTarget::Any,
            Fault::ServerError {
                status,
                work: Work::Done,
            },
        );
        assert_eq!(faults.add(rule), Err(InvalidFaultRule::Status));
    }
}

#[test]
fn the_work_of_each_fault() {
    let before = WorkTime::BeforeTheAnswer;
    for (fault, work) in [
        (Fault::Latency { ms: 1 }, before),
        (Fault::SlowAnswer { ms: 1 }, before),
        (Fault::LostAnswer, before),
        (Fault::DroppedRequest, WorkTime::Never),
        (Fault::RateLimited { retry_after: None }, WorkTime::Never),
        (Fault::BoxStarting, WorkTime::Never),
        (
            Fault::ServerError {
                status: 502,
                work: Work::Done,
            },
            before,
        ),
        (
            Fault::ServerError {
                status: 502,
                work: Work::NotDone,
            },
            WorkTime::Never,
        ),
        (Fault::Html { work: Work::Done }, before),
        (Fault::NotFoundPage, WorkTime::Never),
        (Fault::TruncatedBody, before),
        (
            Fault::DelayedDelivery { ms: 5 },
            WorkTime::AfterTheAnswer {
                delay: Duration::from_millis(5),
            },
        ),
    ] {
        assert_eq!(Fault::course(Some(&fault)).work, work, "{fault:?}");
    }
}
