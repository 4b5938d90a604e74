//! Connections over which nothing comes any more, though nobody has closed them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use boxrun::queue::{Claimer, ClaimerOptions, Lanes, Listener};
use boxrun::runs::RunState;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::support::app::App;
use crate::support::box_says::{says, started};
use crate::support::wait::wait_until;

/// Hands connections on to a server, until those that there are are swallowed: open, and silent.
struct Proxy {
    port: u16,
    accepted: Arc<AtomicUsize>,
    swallow: Arc<Notify>,
    serving: AbortHandle,
}

impl Proxy {
    async fn to(host: String, port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let (accepted, swallow) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let (counted, swallowed) = (Arc::clone(&accepted), Arc::clone(&swallow));
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = TcpStream::connect((host.as_str(), port)).await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let swallowed = Arc::clone(&swallowed);
                connections.spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = swallowed.notified() => std::future::pending().await,
                    }
                });
            }
        });
        Self {
            port: own_port,
            accepted,
            swallow,
            serving: serving.abort_handle(),
        }
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_listen_connection_that_is_half_open_is_replaced(pool: PgPool) {
    let options = (*pool.connect_options()).clone();
    let proxy = Proxy::to(options.get_host().to_owned(), options.get_port()).await;
    let claimer = Claimer::new(
        pool.clone(),
        ClaimerOptions {
            worker: "listener".to_owned(),
            lease: Duration::from_secs(60),
            concurrency: [0; 4],
        },
    );
    let through_proxy = options.host("127.0.0.1").port(proxy.port).application_name("half-open");
    let listener = Listener::new(through_proxy, claimer).pinging_every(Duration::from_millis(500));
    let listening = tokio::spawn(listener.run());
    let sessions = async || {
        let listening = "select count(*) from pg_stat_activity where application_name = 'half-open'
             and datname = current_database() and query ilike 'listen%'";
        sqlx::query_scalar::<_, i64>(listening).fetch_one(&pool).await.unwrap()
    };
    wait_until("it listens", sessions, |count| *count >= 1).await;

    proxy.swallow.notify_waiters();
    wait_until("it listens anew", sessions, |count| *count >= 2).await;
    assert!(proxy.accepted.load(Ordering::SeqCst) >= 2);
    listening.abort();
    proxy.serving.abort();
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_whose_connections_all_go_silent_makes_new_ones_and_works_on(pool: PgPool) {
    let options = (*pool.connect_options()).clone();
    let proxy = Proxy::to(options.get_host().to_owned(), options.get_port()).await;
    let port = proxy.port;
    let answers = [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")];
    let mut app = App::idle(pool, answers).await;
    app.start_worker_with(|options| {
        options.database = options.database.clone().host("127.0.0.1").port(port);
        // What a claim took whose answer was swallowed comes back soon.
        options.lease = Duration::from_secs(3);
    });
    // It listens last of all: what it needs to begin with is done.
    let listening = "select count(*) from pg_stat_activity
         where datname = current_database() and query ilike 'listen%'";
    let listens = async || {
        sqlx::query_scalar::<_, i64>(listening)
            .fetch_one(&app.pool)
            .await
            .unwrap()
    };
    wait_until("the worker works", listens, |count| *count == 1).await;

    proxy.swallow.notify_waiters();
    let run = app.admit("true").await;
    let state = async || app.run(run).await.state;
    wait_until("the run is done", state, |state| *state == RunState::Completed).await;
    app.finish().await;
    proxy.serving.abort();
}

/// A connection that goes silent as it is given back never comes back to its pool.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_pool_that_has_none_left_to_give_is_replaced(pool: PgPool) {
    let small = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_millis(100))
        .connect_lazy_with((*pool.connect_options()).clone());
    let _never_given_back = small.acquire().await.unwrap();
    let app = App::idle(pool, []).await;
    let run = app.admit("true").await;
    let claimer = Claimer::new(
        small,
        ClaimerOptions {
            worker: "patient".to_owned(),
            lease: Duration::from_secs(60),
            concurrency: [1; 4],
        },
    );
    let (lanes, [mut starts, ..]) = Lanes::new();
    let claiming = tokio::spawn(claimer.run(lanes, CancellationToken::new()));

    let job = tokio::time::timeout(Duration::from_secs(60), starts.recv()).await;
    assert_eq!(job.expect("a claim").expect("a claimer that runs").lease.run_id, run);
    claiming.abort();
    app.finish().await;
}
