//! A TCP proxy that misbehaves on command: it knows bytes and connections, and nothing of what they mean.
//!
//! Its address stays the same while it is pointed elsewhere, refuses, and comes back.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const BUFFER_BYTES: usize = 16 * 1024;
/// Until an address that was given up is ours again.
const BETWEEN_BINDS: Duration = Duration::from_millis(20);
/// No byte limit.
const UNLIMITED: i64 = i64::MAX;

/// Dropped, it takes its connections along.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: watch::Sender<bool>,
    server: JoinHandle<()>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    links: Mutex<Vec<Arc<Link>>>,
    /// Of each piece of bytes, on all connections.
    delay_ms: AtomicU64,
}

/// One connection that passes through.
struct Link {
    cut: CancellationToken,
    swallows: AtomicBool,
    /// From the server to the client, until the cut.
    bytes_left: AtomicI64,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            links: Mutex::default(),
            delay_ms: AtomicU64::new(0),
        });
        let (accepting, told) = watch::channel(true);
        let server = tokio::spawn(serve(listener, address, told, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            accepting,
            server,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections go.
    pub fn point_to(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// From now on connections are refused, as when nobody listens.
    pub fn refuse(&self) {
        self.accepting.send_replace(false);
    }

    pub fn accept(&self) {
        self.accepting.send_replace(true);
    }

    /// Each piece of bytes arrives this much later.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// Cuts the connections that `chosen` picks from their numbers, at once.
    pub fn cut(&self, chosen: impl FnMut(usize) -> bool) -> usize {
        self.each(chosen, |link| link.cut.cancel())
    }

    /// Cuts the chosen connections once so many bytes more came from the server: in the middle of what it says.
    pub fn cut_after(&self, bytes: i64, chosen: impl FnMut(usize) -> bool) -> usize {
        self.each(chosen, |link| link.bytes_left.store(bytes, Ordering::Relaxed))
    }

    /// The chosen connections stay open, and whatever is sent on them goes nowhere, in both directions.
    pub fn swallow(&self, chosen: impl FnMut(usize) -> bool) -> usize {
        self.each(chosen, |link| link.swallows.store(true, Ordering::Relaxed))
    }

    /// Accepts, without delay. Connections that were swallowed stay so: who waits on one has to give it up.
    pub fn heal(&self) {
        self.accept();
        self.delay(Duration::ZERO);
        for link in lock(&self.shared.links).iter() {
            link.bytes_left.store(UNLIMITED, Ordering::Relaxed);
        }
    }

    fn each(&self, mut chosen: impl FnMut(usize) -> bool, act: impl Fn(&Link)) -> usize {
        let links = lock(&self.shared.links);
        let picked = links.iter().enumerate().filter(|(number, _)| chosen(*number));
        picked.map(|(_, link)| act(link)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
        self.cut(|_| true);
    }
}

async fn serve(listener: TcpListener, address: SocketAddr, mut told: watch::Receiver<bool>, shared: Arc<Shared>) {
    let mut listening = Some(listener);
    loop {
        let Some(listener) = &listening else {
            if told.wait_for(|accepts| *accepts).await.is_err() {
                return;
            }
            match TcpListener::bind(address).await {
                Ok(listener) => listening = Some(listener),
                Err(_) => tokio::time::sleep(BETWEEN_BINDS).await,
            }
            continue;
        };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    tokio::spawn(pass(client, Arc::clone(&shared)));
                }
                // Out of descriptors, as a rule: others close theirs.
                Err(_) => tokio::time::sleep(BETWEEN_BINDS).await,
            },
            () = until_refusing(&mut told) => listening = None,
        }
    }
}

async fn until_refusing(told: &mut watch::Receiver<bool>) {
    // An end of the proxy ends the whole task.
    let _ = told.wait_for(|accepts| !*accepts).await;
}

async fn pass(client: TcpStream, shared: Arc<Shared>) {
    let target = *lock(&shared.target);
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let link = Arc::new(Link {
        cut: CancellationToken::new(),
        swallows: AtomicBool::new(false),
        bytes_left: AtomicI64::new(UNLIMITED),
    });
    lock(&shared.links).push(Arc::clone(&link));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = link.cut.cancelled() => {}
        ((), ()) = async {
            tokio::join!(
                pump(from_client, to_server, &shared, &link, Direction::ToServer),
                pump(from_server, to_client, &shared, &link, Direction::ToClient),
            )
        } => {}
    }
    lock(&shared.links).retain(|other| !Arc::ptr_eq(other, &link));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// Carries bytes one way until their source ends.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, link: &Link, direction: Direction) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            // The other side's end is passed on, unless it is lost like everything else.
            if link.swallows.load(Ordering::Relaxed) {
                link.cut.cancelled().await;
            }
            let _ = to.shutdown().await;
            return;
        };
        let delay = shared.delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        if link.swallows.load(Ordering::Relaxed) {
            continue;
        }
        let piece = match direction {
            Direction::ToServer => &buffer[..count],
            Direction::ToClient => allowed(&buffer[..count], link),
        };
        if to.write_all(piece).await.is_err() || piece.len() < count {
            link.cut.cancel();
            return;
        }
    }
}

/// What of `bytes` may pass before the cut.
fn allowed<'a>(bytes: &'a [u8], link: &Link) -> &'a [u8] {
    let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    let limited = |left: i64| (left != UNLIMITED).then(|| left - length);
    match link
        .bytes_left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, limited)
    {
        Ok(left) if left < length => &bytes[..usize::try_from(left).unwrap_or(0)],
        Ok(_) | Err(_) => bytes,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
