//! A proxy between a worker and PostgreSQL that knows where a statement begins and ends, and what it is called.
//!
//! Of the protocol it needs little: messages have a type and a length; what is done is named by a `Parse` before or a
//! `Query`; the server is done when it says `ReadyForQuery` (PostgreSQL's manual, "Message Formats").

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::tap::{Fault, Passage, Tap};

const SSL_REQUEST: u32 = 80_877_103;

/// Statements that keep the worker going, whatever runs there are: not what a run's life consists of.
const HOUSEKEEPING: &[&str] = &[
    "boxrun.workers",
    "boxrun.provider",
    "boxrun.settings",
    "boxrun._sqlx_migrations",
    "boxrun.kind_pauses",
    "boxrun.webhook",
    "with mine as materialized",
    "pg_notify($1",
    "LISTEN",
    "SET ",
    "BEGIN",
    "ROLLBACK",
];
/// Reconcile works in transactions that begin so, and not for a job.
const RECONCILE: &str = "pg_try_advisory_xact_lock";
/// A claim that takes nothing is no step either, but that shows in its answer alone.
const CLAIM: &str = "with due as materialized";

pub struct Proxy {
    pub port: u16,
    serving: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub async fn to(database: &PgConnectOptions, tap: Arc<Tap>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (host, server_port) = (database.get_host().to_owned(), database.get_port());
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (host, tap) = (host.clone(), Arc::clone(&tap));
                connections.spawn(async move {
                    let server = TcpStream::connect((host.as_str(), server_port)).await?;
                    Connection::new(client, server, tap).serve().await
                });
            }
        });
        Ok(Self {
            port,
            serving: serving.abort_handle(),
        })
    }
}

#[derive(Debug)]
struct Message {
    kind: u8,
    bytes: Vec<u8>,
}

impl Message {
    /// What comes after type and length, as strings that end with 0.
    fn strings(&self) -> impl Iterator<Item = String> {
        let strings = self.bytes[5..].split(|byte| *byte == 0);
        strings.map(|string| String::from_utf8_lossy(string).into_owned())
    }
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    tap: Arc<Tap>,
    /// Prepared statements by their names.
    prepared: HashMap<String, String>,
    /// The last statement that was a step, for the commit that follows.
    last: Option<String>,
    reconciles: bool,
}

impl Connection {
    fn new(client: TcpStream, server: TcpStream, tap: Arc<Tap>) -> Self {
        Self {
            client,
            server,
            tap,
            prepared: HashMap::new(),
            last: None,
            reconciles: false,
        }
    }

    async fn serve(mut self) -> io::Result<()> {
        self.start().await?;
        let (mut client_byte, mut server_byte) = ([0], [0]);
        loop {
            let (batch, what) = tokio::select! {
                // A message that has begun comes whole: only the wait for its first byte may be given up.
                ready = self.client.peek(&mut client_byte) => { ready?; self.read_batch().await? }
                ready = self.server.peek(&mut server_byte) => {
                    ready?;
                    let notice = read_message(&mut self.server).await?;
                    self.client.write_all(&notice.bytes).await?;
                    continue;
                }
            };
            if what.as_ref().is_some_and(|what| what.contains(CLAIM)) {
                self.claim(&batch).await?;
                continue;
            }
            let passage = match self.step_of(what.as_deref()) {
                Some(step) => self.tap.statement(&step),
                None => Passage::Passes,
            };
            match passage {
                Passage::Passes => {
                    let (answer, _) = self.done(&batch).await?;
                    self.client.write_all(&answer).await?;
                }
                Passage::Strikes(Fault::CrashBefore | Fault::RequestLost) => {
                    self.tap.strike();
                    return Ok(());
                }
                Passage::Strikes(Fault::CrashAfter | Fault::AnswerLost | Fault::Twice) => {
                    self.done(&batch).await?;
                    self.tap.strike();
                    return Ok(());
                }
                Passage::Strikes(Fault::LeaseLost) => {
                    self.tap.strike();
                    self.tap.released().await;
                    let (answer, _) = self.done(&batch).await?;
                    self.client.write_all(&answer).await?;
                }
            }
        }
    }

    /// Up to the first `ReadyForQuery`: encryption is declined by the server, passwords pass unseen.
    async fn start(&mut self) -> io::Result<()> {
        loop {
            let length = self.client.read_u32().await?;
            let mut rest = vec![0; usize::try_from(length).unwrap_or(4) - 4];
            self.client.read_exact(&mut rest).await?;
            self.server
                .write_all(&[&length.to_be_bytes()[..], &rest].concat())
                .await?;
            if !rest.starts_with(&SSL_REQUEST.to_be_bytes()) {
                break;
            }
            let declined = self.server.read_u8().await?;
            self.client.write_u8(declined).await?;
        }
        let (mut client_byte, mut server_byte) = ([0], [0]);
        loop {
            tokio::select! {
                ready = self.client.peek(&mut client_byte) => {
                    ready?;
                    let message = read_message(&mut self.client).await?;
                    self.server.write_all(&message.bytes).await?;
                }
                ready = self.server.peek(&mut server_byte) => {
                    ready?;
                    let message = read_message(&mut self.server).await?;
                    self.client.write_all(&message.bytes).await?;
                    if message.kind == b'Z' {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// All that the client sends until it waits, and the text of what is done by it.
    async fn read_batch(&mut self) -> io::Result<(Vec<u8>, Option<String>)> {
        let (mut batch, mut what) = (Vec::new(), None);
        loop {
            let message = read_message(&mut self.client).await?;
            batch.extend_from_slice(&message.bytes);
            let mut strings = message.strings();
            match message.kind {
                b'P' => {
                    let (name, sql) = (strings.next().unwrap_or_default(), strings.next().unwrap_or_default());
                    self.prepared.insert(name, sql);
                }
                b'B' => {
                    let name = strings.nth(1).unwrap_or_default();
                    what = self.prepared.get(&name).cloned();
                }
                b'Q' => return Ok((batch, strings.next())),
                b'S' => return Ok((batch, what)),
                b'X' => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
        }
    }

    /// Lets the server do it; returns its answer, and whether there are rows in it.
    async fn done(&mut self, batch: &[u8]) -> io::Result<(Vec<u8>, bool)> {
        self.server.write_all(batch).await?;
        let (mut answer, mut has_rows) = (Vec::new(), false);
        loop {
            let message = read_message(&mut self.server).await?;
            answer.extend_from_slice(&message.bytes);
            has_rows |= message.kind == b'D';
            if message.kind == b'Z' {
                return Ok((answer, has_rows));
            }
        }
    }

    /// A claim meets its fault when it has taken a job.
    async fn claim(&mut self, batch: &[u8]) -> io::Result<()> {
        let (answer, takes) = self.done(batch).await?;
        if takes && let Passage::Strikes(fault) = self.tap.statement("claim") {
            self.tap.strike();
            if fault != Fault::LeaseLost {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.tap.released().await;
        }
        self.client.write_all(&answer).await
    }

    /// What a batch is called, if it is a step.
    fn step_of(&mut self, what: Option<&str>) -> Option<String> {
        let what = what?;
        self.reconciles |= what.contains(RECONCILE);
        let ends = what.starts_with("COMMIT") || what.starts_with("ROLLBACK");
        if self.reconciles {
            self.reconciles = !ends;
            return None;
        }
        if what.starts_with("COMMIT") {
            return self.last.take().map(|last| format!("commit after {last}"));
        }
        self.last = None;
        if HOUSEKEEPING.iter().any(|mark| what.contains(mark)) {
            return None;
        }
        self.last = Some(name_of(what));
        self.last.clone()
    }
}

/// The statement's first words, without what is said about it.
fn name_of(sql: &str) -> String {
    let code = sql.lines().filter(|line| !line.trim_start().starts_with("--"));
    let words: Vec<&str> = code.flat_map(str::split_whitespace).take(9).collect();
    words.join(" ")
}

async fn read_message(from: &mut TcpStream) -> io::Result<Message> {
    let kind = from.read_u8().await?;
    let length = from.read_u32().await?;
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.resize(usize::try_from(length).unwrap_or(4) + 1, 0);
    from.read_exact(&mut bytes[5..]).await?;
    Ok(Message { kind, bytes })
}
