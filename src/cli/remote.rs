//! A web process elsewhere: what the commands for people ask it with `BOXRUN_URL` and `BOXRUN_TOKEN`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use backon::{ExponentialBuilder, Retryable};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

use crate::config::Environment;
use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::conversations::AttachedBox;
use crate::runs::{OutputRead, Principal, RunState, RunView, TimelineEntry};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The provider is asked meanwhile, which may take half a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Runs of one page.
const PAGE_MAX: u16 = 200;

/// One person's access by HTTP.
pub(super) struct Remote {
    http: reqwest::Client,
    base: String,
    token: SecretString,
    pub me: Me,
}

/// Whom the token stands for.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Me {
    pub principal: Principal,
    pub default_conversation_id: ConversationId,
}

/// What a run to be started is made of.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub conversation: ConversationId,
    pub box_id: BoxId,
    pub command: String,
    pub key: String,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub max_duration: Option<Duration>,
}

#[derive(Deserialize)]
struct RunBody {
    run: RunView,
}

#[derive(Deserialize)]
struct RunsBody {
    runs: Vec<RunView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct OutputBody {
    output: OutputRead,
}

#[derive(Deserialize)]
struct EventsBody {
    events: Vec<TimelineEntry>,
}

#[derive(Deserialize)]
struct BoxesBody {
    boxes: Vec<AttachedBox>,
}

/// A request that brought no usable answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    /// It said no; asking again changes nothing.
    #[error("{code}: {message}")]
    Refused { code: String, message: String },
    /// It may work later.
    #[error("the web process does not answer as it should: {0}")]
    OutOfReach(String),
}

impl Remote {
    /// Where `BOXRUN_URL` is set; asks whom the token stands for.
    pub async fn open(environment: &Environment<'_>) -> anyhow::Result<Option<Self>> {
        let Some(url) = environment.text("BOXRUN_URL") else {
            return Ok(None);
        };
        let parsed = Url::parse(url.trim()).ok();
        let parsed = parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let Some(parsed) = parsed else {
            bail!("BOXRUN_URL is an http or https address, for example https://boxrun.example.com");
        };
        let token = environment.text("BOXRUN_TOKEN").context(
            "BOXRUN_URL is set and BOXRUN_TOKEN is not; `boxrun token create` makes one where the database is",
        )?;
        let mut remote = Self {
            http: http_client(&parsed)?,
            base: parsed.as_str().trim_end_matches('/').to_owned(),
            token: SecretString::from(token.trim().to_owned()),
            me: Me {
                principal: Principal::user(""),
                default_conversation_id: ConversationId(uuid::Uuid::nil()),
            },
        };
        remote.me = remote.get("/me").await?;
        Ok(Some(remote))
    }

    pub async fn find(&self, id: RunId) -> anyhow::Result<RunView> {
        let body: RunBody = self.get(&format!("/runs/{id}")).await?;
        Ok(body.run)
    }

    pub async fn list(&self, state: Option<RunState>, limit: u16) -> anyhow::Result<Vec<RunView>> {
        let mut runs = Vec::new();
        let mut after = String::new();
        while runs.len() < usize::from(limit) {
            let left = usize::from(limit) - runs.len();
            let page = left.min(usize::from(PAGE_MAX));
            let state = state.map(|state| format!("&state={state}")).unwrap_or_default();
            let body: RunsBody = self.get(&format!("/runs?limit={page}{state}{after}")).await?;
            runs.extend(body.runs);
            match body.next {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        Ok(runs)
    }

    pub async fn timeline(&self, run: &RunView) -> anyhow::Result<Vec<TimelineEntry>> {
        let body: EventsBody = self.get(&format!("{}/events", path(run))).await?;
        Ok(body.events)
    }

    pub async fn output(&self, run: &RunView, offset: i64) -> anyhow::Result<OutputRead> {
        let body: OutputBody = self.get(&format!("{}/output?offset={offset}", path(run))).await?;
        Ok(body.output)
    }

    pub async fn cancel(&self, run: &RunView) -> anyhow::Result<RunView> {
        let body: RunBody = self.send(Method::POST, &format!("{}/cancel", path(run)), None).await?;
        Ok(body.run)
    }

    /// The same key, box and command is the same run, so that it may be sent again when no answer came.
    pub async fn start(&self, wanted: &Wanted) -> anyhow::Result<RunView> {
        let body = json!({
            "command": wanted.command,
            "idempotency_key": wanted.key,
            "max_duration_seconds": wanted.max_duration.map(|duration| duration.as_secs()),
            "cwd": wanted.cwd,
            "env": wanted.env,
        });
        let path = format!("{}/boxes/{}/runs", conversation(wanted.conversation), wanted.box_id);
        let body: RunBody = self.send(Method::POST, &path, Some(&body)).await?;
        Ok(body.run)
    }

    pub async fn boxes(&self) -> anyhow::Result<Vec<AttachedBox>> {
        let body: BoxesBody = self.get("/boxes").await?;
        Ok(body.boxes)
    }

    /// Makes the conversation, if it is new, and attaches the box to it.
    pub async fn attach(&self, id: ConversationId, box_id: &BoxId) -> anyhow::Result<()> {
        let _: Value = self.send(Method::PUT, &conversation(id), None).await?;
        let path = format!("{}/boxes/{box_id}", conversation(id));
        let _: Value = self.send(Method::PUT, &path, None).await?;
        Ok(())
    }

    pub async fn detach(&self, box_id: &BoxId) -> anyhow::Result<()> {
        let boxes = self.boxes().await?;
        let attached = boxes.into_iter().find(|attached| attached.id == *box_id);
        let attached = attached.context("box_not_found: there is no such box here")?;
        let path = format!("{}/boxes/{box_id}", conversation(attached.conversation_id));
        self.answered(|| self.request(Method::DELETE, &path)).await?;
        Ok(())
    }

    /// The run's events from `offset` on.
    pub async fn stream(&self, run: &RunView, offset: i64) -> Result<Response, RemoteError> {
        let request = self
            .http
            .get(format!("{}/api/v1{}/stream?offset={offset}", self.base, path(run)))
            .bearer_auth(self.token.expose_secret());
        judge(request.send().await).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(Method::GET, path, None).await
    }

    async fn send<T: DeserializeOwned>(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<T> {
        let answer = self
            .answered(|| match body {
                Some(body) => self.request(method.clone(), path).json(body),
                None => self.request(method.clone(), path),
            })
            .await?;
        answer
            .json()
            .await
            .with_context(|| format!("{} is no web process of boxrun, or another version of it", self.base))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}/api/v1{path}", self.base))
            .bearer_auth(self.token.expose_secret())
            .timeout(ANSWER_TIMEOUT)
    }

    /// Everything that is asked may be asked again.
    async fn answered(&self, request: impl Fn() -> RequestBuilder) -> anyhow::Result<Response> {
        let tries = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_times(3)
            .with_jitter();
        let answered = (async || judge(request().send().await).await)
            .retry(tries)
            .when(|error| matches!(error, RemoteError::OutOfReach(_)));
        let answered = answered.await;
        match answered {
            Err(RemoteError::OutOfReach(problem)) => bail!("{} does not answer as it should: {problem}", self.base),
            answered => Ok(answered?),
        }
    }
}

async fn judge(answer: reqwest::Result<Response>) -> Result<Response, RemoteError> {
    let answer = answer.map_err(|error| {
        let error = error.without_url();
        let mut innermost: &dyn std::error::Error = &error;
        while let Some(source) = innermost.source() {
            innermost = source;
        }
        RemoteError::OutOfReach(innermost.to_string())
    })?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body: Value = answer.json().await.unwrap_or_default();
    let field = |name: &str| body["error"][name].as_str().map(ToOwned::to_owned);
    match (field("code"), field("message")) {
        // They name themselves what passes.
        (Some(code), Some(message)) if code != "busy" && status != StatusCode::TOO_MANY_REQUESTS => {
            Err(RemoteError::Refused { code, message })
        }
        (Some(code), Some(message)) => Err(RemoteError::OutOfReach(format!("{code}: {message}"))),
        _ => Err(RemoteError::OutOfReach(format!("it answered {status}"))),
    }
}

fn conversation(id: ConversationId) -> String {
    format!("/conversations/{id}")
}

fn path(run: &RunView) -> String {
    format!("{}/runs/{}", conversation(run.conversation_id), run.id)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the client of a person's own requests, which may be repeated"
)]
fn http_client(base: &Url) -> anyhow::Result<reqwest::Client> {
    // Fails when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("boxrun/", env!("CARGO_PKG_VERSION")))
        // A redirect would take the token elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT);
    let builder = match base.scheme() {
        // The system's certificates are not even read.
        "http" => builder.tls_certs_only([]),
        _ => builder,
    };
    builder.build().context("no HTTP client could be made")
}
