//! Resolves host names to addresses.
//!
//! The system resolver blocks, for many seconds if the name server does not answer. It therefore runs on
//! threads of its own, at most [`MAX_THREADS`]. Concurrent lookups of a name share one query, and each caller
//! waits at most [`DEADLINE`].

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// How long a caller waits for an address.
const DEADLINE: Duration = Duration::from_secs(5);

/// How many names are looked up at the same time. A name server that does not answer blocks a thread for at
/// most half a minute.
const MAX_THREADS: usize = 32;

type Lookup = fn(&str) -> io::Result<Vec<IpAddr>>;
type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

/// The addresses of a host, at least one.
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    static SYSTEM: LazyLock<Resolver> = LazyLock::new(|| Resolver::new(ask_system));
    let found = SYSTEM.resolve(host).await?;
    Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

fn ask_system(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|addr| addr.ip()).collect())
}

struct Resolver {
    lookup: Lookup,
    threads: Semaphore,
    pending: Mutex<HashMap<String, watch::Receiver<Option<Found>>>>,
}

impl Resolver {
    fn new(lookup: Lookup) -> Self {
        let (threads, pending) = (Semaphore::new(MAX_THREADS), Mutex::default());
        Self { lookup, threads, pending }
    }

    async fn resolve(&'static self, host: &str) -> io::Result<Vec<IpAddr>> {
        let mut answer = self.start_lookup(host);
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the name server does not answer");
        let answered = timeout(DEADLINE, answer.wait_for(Option::is_some)).await;
        let found = match answered.map_err(|_| late())? {
            Ok(found) => found.clone().expect("`wait_for` returns `Some`"),
            // The lookup was dropped without a result, as when the daemon shuts down.
            Err(_) => return Err(io::ErrorKind::Interrupted.into()),
        };
        let found = found.map_err(|(kind, text)| io::Error::new(kind, text))?;
        if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
    }

    /// Starts a lookup, or joins the pending one.
    fn start_lookup(&'static self, host: &str) -> watch::Receiver<Option<Found>> {
        let mut pending = mainstay_core::lock(&self.pending);
        if let Some(answer) = pending.get(host) {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        pending.insert(host.to_owned(), answer.clone());
        let lookup = PendingLookup { resolver: self, host: host.to_owned(), sender, found: None };
        drop(tokio::spawn(lookup.run()));
        answer
    }
}

/// A lookup in progress. Dropping it publishes the result and removes it from the pending lookups.
struct PendingLookup {
    resolver: &'static Resolver,
    host: String,
    sender: watch::Sender<Option<Found>>,
    found: Option<Found>,
}

impl PendingLookup {
    async fn run(mut self) {
        let permit = self.resolver.threads.acquire().await.expect("the semaphore is never closed");
        let ask = move || {
            let found = (self.resolver.lookup)(&self.host);
            self.found = Some(found.map_err(|error| (error.kind(), error.to_string())));
            drop((self, permit));
        };
        if let Err(error) = thread::Builder::new().name("resolve".to_owned()).spawn(ask) {
            tracing::warn!(%error, "cannot start a thread to resolve a name");
        }
    }
}

impl Drop for PendingLookup {
    fn drop(&mut self) {
        // Removed before the result is sent, so that a caller that retries does not get this result again.
        mainstay_core::lock(&self.resolver.pending).remove(&self.host);
        self.sender.send_replace(self.found.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;

    fn leaked(lookup: Lookup) -> &'static Resolver {
        Box::leak(Box::new(Resolver::new(lookup)))
    }

    #[tokio::test]
    async fn numbers_and_names_of_the_machine_are_resolved() {
        assert_eq!(resolve("127.0.0.1", 7).await.unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        let local = resolve("localhost", 7).await.unwrap();
        assert!(local.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 7), "{local:?}");
    }

    #[tokio::test]
    async fn a_silent_name_server_delays_only_its_own_names() {
        let resolver = leaked(|host| {
            while host.starts_with("silent") {
                thread::park();
            }
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        });
        let begun = Instant::now();
        let silent = tokio::spawn(async {
            for n in 0..MAX_THREADS / 2 {
                drop(resolver.start_lookup(&format!("silent-{n}")));
            }
            resolver.resolve("silent-0").await.unwrap_err().kind()
        });
        tokio::task::yield_now().await;
        assert_eq!(resolver.resolve("well").await.unwrap().len(), 1);
        assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
        assert_eq!(silent.await.unwrap(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_at_a_time() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let resolver = leaked(|_| {
            ASKED.fetch_add(1, Ordering::Relaxed);
            Err(io::ErrorKind::NotFound.into())
        });
        let (one, other) = tokio::join!(resolver.resolve("host"), resolver.resolve("host"));
        assert_eq!(one.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(other.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        resolver.resolve("host").await.unwrap_err();
        assert_eq!(ASKED.load(Ordering::Relaxed), 2, "an error is not remembered");
    }
}
