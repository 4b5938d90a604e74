//! A real `boxrun worker` or `boxrun web`, with a private port that the system chose.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::support::app::App;
use crate::support::program::{boxrun, url_of};
use crate::support::scripted_box::KEY;
use crate::support::wait::wait_until;

/// A test whose answer does not come in this time fails.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const ANY_PORT: &str = "127.0.0.1:0";

/// Killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
    ops: SocketAddr,
    /// Of a web process: where its users ask.
    pub users: Option<SocketAddr>,
    pub client: reqwest::Client,
    _folder: tempfile::TempDir,
}

/// `boxrun` as this app's process.
pub fn command(app: &App, subcommand: &str) -> Command {
    let mut command = boxrun(Some(&url_of(&app.pool)), &[subcommand]);
    command
        .env("BOX_API_URL", app.server.url().as_str())
        .env("BOX_API_KEY", KEY)
        .env("BOXRUN_OPS_LISTEN", ANY_PORT)
        .env("BOXRUN_LISTEN", ANY_PORT)
        .env("BOXRUN_POLL_INTERVAL_MS", "20")
        .env("BOXRUN_LOG_FORMAT", "json")
        .env("RUST_LOG", "info")
        .env_remove("PORT")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl Process {
    pub async fn worker(app: &App) -> Self {
        Self::start(command(app, "worker"), "working").await
    }

    pub async fn web(app: &App) -> Self {
        Self::start(command(app, "web"), "listening").await
    }

    /// Starts it and waits until it says this.
    pub async fn start(mut command: Command, works: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let child = command.stderr(File::create(&log).expect("a log file")).spawn();
        let look = async || lines(&log).into_iter().find(|line| line["message"] == works);
        let said = wait_until(&format!("it says `{works}`"), look, Option::is_some).await;
        let said = said.expect("waited for it");
        // Fails where another test has done it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            child: child.expect("a process"),
            log,
            ops: address(&said["ops"]).expect("a private port"),
            users: address(&said["address"]),
            client: reqwest::Client::builder()
                .no_proxy()
                .tls_certs_only([])
                .timeout(ANSWER_MAX)
                .build()
                .expect("a client"),
            _folder: folder,
        }
    }

    /// Asks on the private port: status and text.
    pub async fn ask(&self, path: &str) -> (u16, String) {
        let (status, _, text) = self.get(path).await;
        (status, text)
    }

    async fn get(&self, path: &str) -> (u16, String, String) {
        let sent = self.client.get(format!("http://{}{path}", self.ops)).send().await;
        let response = sent.expect("an answer");
        let kind = response.headers().get(CONTENT_TYPE);
        let kind = kind.map(|kind| kind.to_str().expect("text").to_owned());
        (
            response.status().as_u16(),
            kind.unwrap_or_default(),
            response.text().await.expect("a body"),
        )
    }

    /// What `/readyz` says, and the status that goes with it.
    pub async fn readiness(&self) -> (u16, String) {
        let (status, text) = self.ask("/readyz").await;
        let body: Value = serde_json::from_str(&text).expect("JSON");
        (status, body["status"].as_str().expect("a word").to_owned())
    }

    pub async fn scrape(&self) -> Scrape {
        let (status, kind, text) = self.get("/metrics").await;
        assert_eq!(
            (status, kind.as_str()),
            (200, "text/plain; version=0.0.4; charset=utf-8")
        );
        Scrape::of(&text)
    }

    /// Waits until a scrape has this value.
    pub async fn measures(&self, metric: &str, labels: &[(&str, &str)], value: f64) -> Scrape {
        let expected = format!("{metric}{labels:?} is {value}");
        let has = |scrape: &Scrape| (scrape.value(metric, labels).unwrap_or(f64::NAN) - value).abs() < 1e-9;
        wait_until(&expected, async || self.scrape().await, has).await
    }

    /// What it has logged so far, line by line.
    pub fn logged(&self) -> Vec<Value> {
        lines(&self.log)
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log file")
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("a process that was not waited for");
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid is not 0");
        kill_process(pid, signal).expect("a process of ours");
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(ANSWER_MAX, self.child.wait()).await;
        ended.expect("it ends").expect("a process of ours")
    }

    /// As by SIGTERM; returns all that it logged.
    pub async fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.log_text());
        self.log_text()
    }
}

/// An address as it is logged, by itself or as `Some(…)`.
fn address(said: &Value) -> Option<SocketAddr> {
    said.as_str()?
        .trim_start_matches("Some(")
        .trim_end_matches(')')
        .parse()
        .ok()
}

/// The JSON lines of a log; the last one may be half written.
fn lines(log: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(log).expect("a log file");
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// What a process measured, as Prometheus reads it.
#[derive(Debug)]
pub struct Scrape {
    pub samples: Vec<Sample>,
    /// Names with `# HELP`.
    pub helped: Vec<String>,
}

#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Scrape {
    pub fn of(text: &str) -> Self {
        let helped = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
        let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            helped: helped
                .filter_map(|rest| rest.split_once(' '))
                .map(|(name, _)| name.to_owned())
                .collect(),
            samples: samples.map(Sample::of).collect(),
        }
    }

    /// The value with exactly these labels, in whatever order.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: BTreeMap<String, String> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let found = self
            .samples
            .iter()
            .find(|sample| sample.name == name && sample.labels == labels);
        found.map(|sample| sample.value)
    }

    /// Names as they are described: a histogram's without the ends of its parts.
    pub fn families(&self) -> Vec<String> {
        let family = |name: &str| {
            let ends = ["_bucket", "_sum", "_count"];
            let bare = ends.iter().find_map(|end| name.strip_suffix(end));
            bare.filter(|bare| bare.ends_with("_seconds"))
                .unwrap_or(name)
                .to_owned()
        };
        let mut names: Vec<String> = self.samples.iter().map(|sample| family(&sample.name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Sample {
    fn of(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.strip_suffix('}').expect("labels end");
        // No value of ours has a comma or a quotation mark in it.
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
            let (key, value) = label.split_once('=').expect("a label is name=value");
            (key.to_owned(), value.trim_matches('"').to_owned())
        });
        Self {
            name: name.to_owned(),
            labels: labels.collect(),
            value: value.parse().expect("a number"),
        }
    }
}
