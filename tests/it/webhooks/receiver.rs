//! A receiver of webhooks in this process: it records what it is told and answers as the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, Uri};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::wait::wait_until;

/// A POST as it arrived.
#[derive(Debug, Clone)]
pub struct Post {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Post {
    pub fn header(&self, name: &str) -> String {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("{name} in {self:?}"));
        value.to_str().expect("ASCII").to_owned()
    }

    pub fn id(&self) -> String {
        self.header("webhook-id")
    }
}

/// What the receiver does.
#[derive(Debug, Clone)]
pub enum Answer {
    Status(u16),
    /// With one header.
    With(u16, &'static str, String),
    /// Waits for [`Receiver::release`], then answers with this status.
    Held(u16),
    /// 200, and a body that never ends.
    Endless,
}

struct Shared {
    posts: Mutex<Vec<Post>>,
    answers: Mutex<VecDeque<Answer>>,
    usual: Mutex<Answer>,
    releases: Semaphore,
}

/// It ends when dropped.
pub struct Receiver {
    pub port: u16,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    /// One that answers 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let shared = Arc::new(Shared {
            posts: Mutex::default(),
            answers: Mutex::default(),
            usual: Mutex::new(Answer::Status(200)),
            releases: Semaphore::new(0),
        });
        let routes = Router::new().fallback(receive).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { port, shared, serving }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hooks", self.port)
    }

    /// The answers to the next posts; what follows gets the usual one.
    pub fn answers(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.shared.answers).extend(answers);
    }

    /// The answer to all posts for which there is no other.
    pub fn usually(&self, answer: Answer) {
        *lock(&self.shared.usual) = answer;
    }

    /// Lets so many held answers go.
    pub fn release(&self, count: usize) {
        self.shared.releases.add_permits(count);
    }

    pub fn posts(&self) -> Vec<Post> {
        lock(&self.shared.posts).clone()
    }

    /// Waits until so many posts have arrived.
    pub async fn wait_for(&self, count: usize) -> Vec<Post> {
        let expected = format!("{count} posts have arrived");
        wait_until(&expected, async || self.posts(), |posts| posts.len() >= count).await
    }
}

async fn receive(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let answer = {
        let mut posts = lock(&shared.posts);
        let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
        posts.push(Post { path, headers, body });
        let next = lock(&shared.answers).pop_front();
        next.unwrap_or_else(|| lock(&shared.usual).clone())
    };
    let response = Response::builder();
    let response = match answer {
        Answer::Status(status) => response.status(status).body(Body::empty()),
        Answer::With(status, name, value) => response.status(status).header(name, value).body(Body::empty()),
        Answer::Held(status) => {
            shared.releases.acquire().await.expect("never closed").forget();
            response.status(status).body(Body::empty())
        }
        Answer::Endless => {
            let chunks = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 16 * 1024])));
            response.body(Body::from_stream(chunks))
        }
    };
    response.expect("a valid answer")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
