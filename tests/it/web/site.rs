//! A web process over an app's database and provider, and who asks it.

use std::net::SocketAddr;
use std::time::Duration;

use boxrun::ids::{BoxId, RunId};
use boxrun::runs::Principal;
use boxrun::web::tokens::{self, Scope};
use boxrun::web::{Web, WebOptions};
use futures::StreamExt as _;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::app::App;
use crate::support::scripted_box::KEY;

/// A test whose answer does not come in this time fails.
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub struct Site {
    pub app: App,
    /// A token of the app's principal, for runs and boxes.
    pub token: String,
    client: reqwest::Client,
    address: SocketAddr,
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("JSON, not {self:?}"))
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// That it is this refusal.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.code().as_str()), (status, code), "{self:?}");
        assert!(!self.message().is_empty(), "{self:?}");
    }

    /// That it is this success; its JSON.
    #[track_caller]
    pub fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    pub fn run_id(&self) -> RunId {
        let id = self.json()["run"]["id"].as_str().map(str::parse);
        id.unwrap_or_else(|| panic!("a run, not {self:?}")).expect("a run id")
    }
}

/// A request that is being put together.
pub struct Asking<'a> {
    site: &'a Site,
    request: reqwest::RequestBuilder,
}

impl Asking<'_> {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    pub fn body(mut self, body: &Value) -> Self {
        self.request = self
            .request
            .header("content-type", "application/json")
            .body(body.to_string());
        self
    }

    pub fn text(mut self, text: &str) -> Self {
        self.request = self.request.body(text.to_owned());
        self
    }

    pub async fn send(self) -> Reply {
        let response = self.request.timeout(ANSWER_MAX).send().await.expect("an answer");
        Reply {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.expect("a body"),
        }
    }

    /// The answer as it comes.
    pub async fn stream(self) -> reqwest::Response {
        let _ = self.site;
        self.request.send().await.expect("an answer")
    }
}

impl Site {
    /// A conversation of the app's principal with one box; no worker.
    pub async fn open(pool: PgPool) -> Self {
        Self::open_with(pool, |_| {}).await
    }

    pub async fn open_with(pool: PgPool, change: impl FnOnce(&mut WebOptions)) -> Self {
        let app = App::idle(pool, []).await;
        let mut options = options(&app);
        change(&mut options);
        let stop = CancellationToken::new();
        let client = match options.provider {
            Some(_) => app.server.client(),
            None => boxrun::box_api::BoxClient::new(app.server.url(), None).expect("a client"),
        };
        let web = Web::bind(client, options, stop.clone()).await.expect("a web process");
        let address = web.address();
        let scopes = [Scope::RunsRead, Scope::RunsWrite, Scope::BoxesWrite];
        let token = tokens::create(&app.pool, &app.principal, &scopes, None).await;
        Self {
            token: token.expect("a token").token,
            client: reqwest::Client::builder()
                .no_proxy()
                .tls_certs_only([])
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .expect("a client"),
            address,
            serving: Some(tokio::spawn(web.serve())),
            stop,
            app,
        }
    }

    /// A token of somebody, also of somebody else.
    pub async fn token_of(&self, principal: &Principal, scopes: &[Scope]) -> String {
        let made = tokens::create(&self.app.pool, principal, scopes, None).await;
        made.expect("a token").token
    }

    /// Asks as nobody.
    pub fn ask(&self, method: Method, path: &str) -> Asking<'_> {
        let address = format!("http://{}{path}", self.address);
        Asking {
            site: self,
            request: self.client.request(method, address),
        }
    }

    /// Asks with the app's token.
    pub fn own(&self, method: Method, path: &str) -> Asking<'_> {
        let authorization = format!("Bearer {}", self.token);
        self.ask(method, path).header("authorization", &authorization)
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.own(Method::GET, path).send().await
    }

    /// Where it listens, as its users know it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn conversation(&self) -> String {
        format!("/api/v1/conversations/{}", self.app.conversation)
    }

    pub fn runs_of(&self, box_id: &BoxId) -> String {
        format!("{}/boxes/{box_id}/runs", self.conversation())
    }

    pub fn run(&self, id: RunId) -> String {
        format!("{}/runs/{id}", self.conversation())
    }

    /// Starts a run on the app's box.
    pub async fn start(&self, command: &str, key: &str) -> Reply {
        let body = json!({ "command": command, "idempotency_key": key });
        let asking = self.own(Method::POST, &self.runs_of(&self.app.box_id));
        asking.body(&body).send().await
    }

    /// The run releases text, as a poll would have it.
    pub async fn print(&self, run: RunId, text: &str) {
        let printed = "with grown as (
                update boxrun.runs set last_output_offset = last_output_offset + octet_length($2),
                       log_offset = log_offset + octet_length($2)
                 where id = $1 returning last_output_offset - octet_length($2) as start_offset)
             insert into boxrun.run_output (run_id, start_offset, text) select $1, start_offset, $2 from grown";
        let printed = sqlx::query(printed)
            .bind(run.0)
            .bind(text)
            .execute(&self.app.pool)
            .await;
        assert_eq!(printed.expect("a run that prints").rows_affected(), 1);
    }

    /// The run ends with exit status 0.
    pub async fn complete(&self, run: RunId) {
        let ended =
            "update boxrun.runs set state = 'completed', exit_status = 0, exit_learnt_at = t.at, finished_at = t.at,
                     updated_at = t.at from (select clock_timestamp() as at) t where id = $1";
        self.app.execute(ended, run).await;
    }

    /// A second web process in the place of this one, which has stopped.
    pub async fn another_web(self) -> Self {
        self.web_at(([127, 0, 0, 1], 0).into()).await
    }

    /// As [`Self::another_web`], and whoever knew the first one finds it.
    pub async fn web_at_the_same_address(self) -> Self {
        let address = self.address;
        self.web_at(address).await
    }

    async fn web_at(self, listen: SocketAddr) -> Self {
        assert!(self.serving.is_none(), "the first one has stopped");
        let stop = CancellationToken::new();
        let options = WebOptions {
            listen,
            ..options(&self.app)
        };
        let web = Web::bind(self.app.server.client(), options, stop.clone()).await;
        let web = web.expect("a web process");
        Self {
            address: web.address(),
            serving: Some(tokio::spawn(web.serve())),
            stop,
            ..self
        }
    }

    /// Ends the web process as SIGTERM does; the app goes on.
    pub async fn stop_web(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            let ended = tokio::time::timeout(ANSWER_MAX, serving).await;
            ended.expect("it stops").expect("it does not panic");
        }
    }

    pub async fn close(mut self) {
        self.stop_web().await;
        self.app.finish().await;
    }
}

fn options(app: &App) -> WebOptions {
    WebOptions {
        database: (*app.pool.connect_options()).clone(),
        connections: 4,
        connection_lifetime: Duration::from_secs(60),
        listen: ([127, 0, 0, 1], 0).into(),
        ops_listen: None,
        allowed_origins: vec!["https://app.example.com".to_owned()],
        max_duration: Duration::from_secs(1800),
        rate_per_second: None,
        shutdown: Duration::from_secs(5),
        provider: Some(app.server.client().origin()),
        secrets: vec![KEY.to_owned()],
        secret_keys: None,
    }
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: Option<String>,
    pub data: Value,
}

/// Events of a stream, as they come.
pub struct Events {
    body: futures::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    /// What has come and is no whole event yet.
    pending: Vec<u8>,
}

impl Events {
    pub async fn of(asking: Asking<'_>) -> Self {
        let response = asking.stream().await;
        assert_eq!(response.status().as_u16(), 200, "{response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            body: response.bytes_stream().boxed(),
            pending: Vec::new(),
        }
    }

    /// The next event; `None`: the stream has ended.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(length) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.pending.drain(..length + 2).collect();
                match read_event(std::str::from_utf8(&block).expect("UTF-8")) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let chunk = tokio::time::timeout(ANSWER_MAX, self.body.next())
                .await
                .expect("an event in time");
            match chunk {
                Some(Ok(bytes)) => self.pending.extend_from_slice(&bytes),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// All that come until the stream ends.
    pub async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// A block without data (a comment, the retry) is no event.
fn read_event(block: &str) -> Option<Event> {
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(ToOwned::to_owned))
    };
    Some(Event {
        data: serde_json::from_str(&field("data")?).expect("JSON"),
        name: field("event").expect("a name"),
        id: field("id"),
    })
}
