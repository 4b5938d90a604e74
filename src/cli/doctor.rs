//! `boxrun doctor`: looks at everything that boxrun needs, as far as it gets, and says what to do. It changes nothing.

mod database;
mod provider;

use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde::Serialize;

use super::print::say;
use crate::config::{Environment, process_environment};

/// How one check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ok,
    Warning,
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    status: Status,
    detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            status: Status::Ok,
            detail: detail.into(),
            advice: None,
        }
    }

    fn warning(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            check,
            status: Status::Warning,
            detail: detail.into(),
            advice: Some(advice.into()),
        }
    }

    fn failed(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            status: Status::Failed,
            ..Self::warning(check, detail, advice)
        }
    }
}

pub(super) async fn doctor(json: bool) -> anyhow::Result<ExitCode> {
    let mut findings = configuration();
    // Each by itself, so that what is wrong elsewhere hides nothing.
    let mut environment = Environment::new(&process_environment);
    let (database, provider) = (environment.database(), environment.provider());
    let (of_database, of_provider) = tokio::join!(
        async {
            match database {
                Some(options) => database::look(&options, &provider).await,
                None => Vec::new(),
            }
        },
        provider::look(&provider)
    );
    findings.extend(of_database);
    findings.extend(of_provider);
    let ok = findings.iter().all(|finding| finding.status != Status::Failed);
    if json {
        say!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "ok": ok, "checks": findings }))?
        );
    } else {
        print(&findings);
    }
    Ok(ExitCode::from(u8::from(!ok)))
}

fn print(findings: &[Finding]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for finding in findings {
        let status = match finding.status {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Failed => "FAILED",
        };
        table.add_row([status, finding.check, &finding.detail]);
        if let Some(advice) = &finding.advice {
            table.add_row(["", "", &format!("→ {advice}")]);
        }
    }
    say!("{table}");
}

/// All faults of the environment, as a worker would find them.
fn configuration() -> Vec<Finding> {
    let mut environment = Environment::new(&process_environment);
    let _ = environment.worker();
    match environment.finish(()) {
        Ok(()) => vec![Finding::ok("configuration", "every setting is as it should be")],
        Err(error) => error
            .faults()
            .iter()
            .map(|fault| {
                Finding::failed(
                    "configuration",
                    fault,
                    "set it in the environment; see Configure in the README",
                )
            })
            .collect(),
    }
}
