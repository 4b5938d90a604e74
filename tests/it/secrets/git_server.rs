//! A repository over HTTP that asks for a password: git's "dumb" protocol is files served as they are.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub struct GitServer {
    host: String,
    refused: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
    _folder: TempDir,
}

impl GitServer {
    /// Serves `/project.git` with one file to whoever knows the password.
    pub async fn start(user: &str, password: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_repository(folder.path());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let refused = Arc::new(AtomicUsize::new(0));
        let expected = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        let (root, counted) = (folder.path().to_owned(), Arc::clone(&refused));
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (root, expected, counted) = (root.clone(), expected.clone(), Arc::clone(&counted));
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let answer = answer(&root, &expected, &counted, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self {
            host,
            refused,
            serving,
            _folder: folder,
        }
    }

    pub fn host(&self) -> String {
        self.host.clone()
    }

    pub fn refused_without_password(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    pub async fn stop(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

fn answer(root: &Path, expected: &str, refused: &AtomicUsize, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let sent = request
        .headers()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    if sent != Some(expected) {
        refused.fetch_add(1, Ordering::Relaxed);
        let asks = Response::builder()
            .status(401)
            .header("www-authenticate", "Basic realm=\"test\"");
        return asks.body(Full::default()).unwrap();
    }
    let path: PathBuf = request
        .uri()
        .path()
        .split('/')
        .filter(|part| !part.is_empty() && *part != "..")
        .collect();
    match std::fs::read(root.join(path)) {
        Ok(bytes) => Response::new(Full::new(Bytes::from(bytes))),
        Err(_) => Response::builder().status(404).body(Full::default()).unwrap(),
    }
}

fn make_repository(root: &Path) {
    let work = root.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("README"), "hello from the repository\n").unwrap();
    let git = |arguments: &[&str]| {
        let made = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-C"])
            .arg(&work)
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&made.stderr)
        );
    };
    git(&["init", "-q"]);
    git(&["add", "README"]);
    git(&["commit", "-q", "-m", "first"]);
    git(&["clone", "-q", "--bare", ".", "../project.git"]);
    git(&["--git-dir=../project.git", "update-server-info"]);
}
