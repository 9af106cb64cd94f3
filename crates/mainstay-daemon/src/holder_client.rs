//! The client of the holder, which keeps the listeners and the instance lock when daemons die, and starts the next one.
//!
//! A daemon has a copy of every descriptor of its holder. If the holder dies, the daemon starts another one and passes
//! them on. Meanwhile the listeners, which are open as long as either of the two is alive, queue connections.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use mainstay_api::Instance;
use mainstay_core::lock;
use mainstay_hold::holder::{
    ConnectionStore, HolderChannel, HolderEvent, Inherited, InheritedState, ListenAddr, StartInfo,
    Unfinished, take_stdin,
};
use mainstay_hold::limits::{HOLDER_RETRY, PULSE};
use mainstay_hold::tcp;
use mainstay_proxy::front::http::{
    self, ConnectionBudget, Drain, PassedOn, Pending, UnfinishedResponse,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::blocking::BlockingPool;
use crate::capacity::Capacity;

/// How many events wait to be handled. A daemon that serves handles each at once.
const EVENTS: usize = 64;

/// The client of the holder. Clones share it.
#[derive(Clone)]
pub struct HolderClient {
    shared: Arc<Shared>,
}

/// The events from the holder.
pub struct HolderEvents(mpsc::Receiver<HolderEvent>);

struct Shared {
    channel: Mutex<HolderChannel>,
    /// For requests that wait for an answer. Two threads, so that listeners do not wait for the start of a holder.
    pool: BlockingPool,
    holder: AtomicU32,
    /// The instance lock; `None` when this daemon has released it.
    lock: Mutex<Option<OwnedFd>>,
    /// Every listener, by its requested address.
    listeners: Mutex<HashMap<ListenAddr, OwnedFd>>,
    start: StartInfo,
    events: mpsc::Sender<HolderEvent>,
    /// Connections of the daemon before this one, by the listener that accepted them.
    connections: Mutex<HashMap<ListenAddr, Vec<PassedOn>>>,
    /// Set when this daemon serves, if the holder can be reached.
    store: OnceLock<ConnectionStore>,
    /// Shared by all listeners.
    connection_budget: Arc<ConnectionBudget>,
    /// Whether this daemon ends for good. Locked while another holder is started.
    ending: Mutex<bool>,
    /// Set when this daemon stops accepting because another one continues with the listeners.
    draining: watch::Sender<Option<Drain>>,
}

impl HolderClient {
    /// Connects to the holder, whose socket is standard input.
    pub fn connect() -> io::Result<(Self, HolderEvents)> {
        let socket = take_stdin()?;
        let (events, holder_events) = mpsc::channel(EVENTS);
        let (channel, welcome) = HolderChannel::connect(socket, forward_to(&events))?;
        let shared = Shared {
            channel: Mutex::new(channel),
            pool: BlockingPool::new(2),
            holder: AtomicU32::new(welcome.holder_pid),
            lock: Mutex::new(Some(welcome.lock)),
            listeners: Mutex::new(welcome.listeners.into_iter().collect()),
            start: welcome.start,
            events,
            connections: Mutex::default(),
            store: OnceLock::new(),
            connection_budget: ConnectionBudget::new(Capacity::of_this_process().http),
            ending: Mutex::default(),
            draining: watch::Sender::new(None),
        };
        Ok((Self { shared: Arc::new(shared) }, HolderEvents(holder_events)))
    }

    /// Reports why this daemon cannot start.
    pub fn failed(&self, error: &[u8]) -> io::Result<()> {
        self.channel().failed(error)
    }

    pub(crate) fn start_info(&self) -> &StartInfo {
        &self.shared.start
    }

    pub(crate) fn holder_pid(&self) -> u32 {
        self.shared.holder.load(Ordering::Relaxed)
    }

    /// A listener at this address. Its queue has the connections that the last daemon did not accept.
    pub(crate) async fn listen(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::from(self.listener(ListenAddr::Tcp(addr)).await?);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Whether this daemon could listen at the address, if another one serves over TCP now.
    pub(crate) fn check(&self, addr: SocketAddr) -> io::Result<()> {
        let listeners = self.listeners();
        let serves = listeners.keys().any(|listen_addr| matches!(listen_addr, ListenAddr::Tcp(_)));
        if !serves || listeners.contains_key(&ListenAddr::Tcp(addr)) {
            return Ok(());
        }
        std::net::TcpListener::bind(addr).map(drop)
    }

    /// The control socket. If its file was removed since the last call, it is bound again.
    pub(crate) async fn listen_for_commands(&self, dir: &Path) -> io::Result<UnixListener> {
        let listen_addr =
            ListenAddr::Unix { dir: dir.to_owned(), name: Instance::SOCKET.to_owned() };
        if !dir.join(Instance::SOCKET).exists() {
            self.listeners().remove(&listen_addr);
        }
        let listener = std::os::unix::net::UnixListener::from(self.listener(listen_addr).await?);
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    }

    /// Closes the listener at this address.
    pub(crate) async fn release(&self, addr: SocketAddr) {
        self.close(ListenAddr::Tcp(addr)).await;
    }

    /// Closes the listeners of the last daemon that this one does not use.
    pub(crate) async fn release_others(&self, used: &[SocketAddr]) {
        let unused = |listen_addr: &ListenAddr| match listen_addr {
            ListenAddr::Tcp(addr) => !used.contains(addr),
            ListenAddr::Unix { .. } => false,
        };
        lock(&self.shared.connections).retain(|listen_addr, _| !unused(listen_addr));
        let unused: Vec<ListenAddr> =
            self.listeners().keys().filter(|listen_addr| unused(listen_addr)).cloned().collect();
        for listen_addr in unused {
            self.close(listen_addr).await;
        }
    }

    /// The connection budget that all listeners share.
    pub(crate) fn connection_budget(&self) -> Arc<ConnectionBudget> {
        Arc::clone(&self.shared.connection_budget)
    }

    /// Takes over the connections of the daemon before this one, which has handed over or died. From now on the holder
    /// keeps copies of this daemon's connections.
    pub(crate) fn take_connections(&self) {
        let channel = self.channel();
        match ConnectionStore::new(channel.clone()) {
            Ok(store) => drop(self.shared.store.set(store)),
            Err(error) => {
                tracing::warn!(%error, "connections will not survive a kill of this daemon");
            }
        }
        let mut all = lock(&self.shared.connections);
        for Inherited { listen_addr, state, socket } in channel.inherited() {
            let pending = match state {
                InheritedState::Idle => Some(Pending::Nothing),
                InheritedState::Response(state) => {
                    UnfinishedResponse::decode(&state).map(Pending::Response)
                }
                InheritedState::Interrupted(state) => Pending::decode(&state, written(&socket)),
            };
            // If a state cannot be read, the connection is closed, and its client reconnects.
            let Some(pending) = pending else { continue };
            let store =
                self.shared.store.get().filter(|_| matches!(listen_addr, ListenAddr::Tcp(_)));
            let stored = store.and_then(|store| store.add_and_wait(&listen_addr, socket.as_fd()));
            let written = store.map_or(0, |_| written(&socket));
            let mut passed_on = PassedOn::new(socket, pending, written);
            if let Some(stored) = stored {
                passed_on = passed_on.stored(Box::new(stored));
            }
            all.entry(listen_addr).or_default().push(passed_on);
        }
    }

    /// Where copies of the connections to this address are kept.
    pub(crate) fn store(&self, addr: SocketAddr) -> Option<Arc<dyn http::ConnectionStore>> {
        Some(Arc::new((self.shared.store.get()?.clone(), ListenAddr::Tcp(addr))))
    }

    /// The holder has executed another program, and has no connections.
    pub(crate) fn renew_store(&self) {
        if let Some(store) = self.shared.store.get() {
            store.replace_holder(self.channel());
        }
    }

    /// The connections to this address that an earlier daemon accepted.
    pub(crate) fn connections(&self, addr: SocketAddr) -> Vec<PassedOn> {
        lock(&self.shared.connections).remove(&ListenAddr::Tcp(addr)).unwrap_or_default()
    }

    /// The connections of `mainstay connect` that an earlier daemon accepted.
    pub(crate) fn private_connections(&self) -> Vec<PassedOn> {
        let mut all = lock(&self.shared.connections);
        let private =
            all.extract_if(|listen_addr, _| matches!(listen_addr, ListenAddr::Unix { .. }));
        private.flat_map(|(_, connections)| connections).collect()
    }

    /// Passes the connections of `mainstay connect` to the next daemon.
    pub(crate) fn pass_on_private(&self, connections: &[PassedOn]) {
        // Where the socket is does not matter to the next daemon.
        let listen_addr = ListenAddr::Unix { dir: "/".into(), name: Instance::SOCKET.to_owned() };
        self.pass_on_all(&listen_addr, connections);
    }

    /// Passes the connections to this address to the next daemon.
    pub(crate) fn pass_on(&self, addr: SocketAddr, connections: &[PassedOn]) {
        self.pass_on_all(&ListenAddr::Tcp(addr), connections);
    }

    fn pass_on_all(&self, listen_addr: &ListenAddr, connections: &[PassedOn]) {
        let channel = self.channel();
        let (mut idle, mut unfinished) = (Vec::new(), Vec::new());
        for PassedOn { socket, pending, .. } in connections {
            let listen_addr = listen_addr.clone();
            match pending {
                Pending::Nothing => idle.push((listen_addr, socket.as_fd())),
                Pending::Response(response) => {
                    let state = response.encode();
                    unfinished.push((Unfinished { listen_addr, state }, socket.as_fd()));
                }
                // It was answered by this daemon, or is closed.
                Pending::Interrupted(_) => {}
            }
        }
        let passed_on =
            channel.pass_connections(&idle).and_then(|()| channel.pass_responses(&unfinished));
        if let Err(error) = passed_on {
            tracing::warn!(%error, "connections are closed");
        }
    }

    /// Reports that this daemon serves.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let ready = self.request(HolderChannel::ready).await;
        if let Some(store) = self.shared.store.get() {
            store.ready();
        }
        ready
    }

    /// Stops accepting: another daemon continues with all listeners, now or later.
    pub(crate) fn close_intake(&self, how: Drain) {
        self.shared.draining.send_replace(Some(how));
    }

    /// Whether the [intake is closed](Self::close_intake).
    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.borrow().is_some()
    }

    /// Resolves when the [intake is closed](Self::close_intake).
    pub(crate) async fn draining(&self) -> Drain {
        let mut draining = self.shared.draining.subscribe();
        let draining = draining.wait_for(Option::is_some).await;
        // The sender lives as long as this.
        draining.ok().and_then(|how| *how).unwrap_or(Drain::Leave)
    }

    /// Closes this daemon's copies of the listeners and of the lock, which the next daemon has.
    pub(crate) fn close_copies(&self) {
        self.listeners().clear();
        lock(&self.shared.lock).take();
    }

    /// Releases all listeners, because this daemon ends for good. No other holder is started after this. One that is
    /// being started gets this request too.
    pub(crate) async fn ending(&self) {
        self.listeners().clear();
        let client = self.clone();
        let ended = self.shared.pool.run(move || {
            *lock(&client.shared.ending) = true;
            client.channel().ending()
        });
        log_failure(ended.await, "cannot release the listeners; the holder keeps them");
    }

    /// Kills a holder of Mainstay 0.1.0, which accepts commands from every process that has a copy of its
    /// daemon's socket, as all servers of 0.1.0 have. [`HolderEvent::HolderGone`] follows, and a new holder is
    /// started.
    pub(crate) async fn kill_outdated_holder(&self) {
        if !self.start_info().holder_is_outdated {
            return;
        }
        let killed = self.request(HolderChannel::kill_holder).await;
        if killed.is_ok() {
            tracing::info!("killed the holder of version 0.1.0");
        }
        log_failure(killed, "cannot kill the holder of version 0.1.0; it is still running");
    }

    /// Starts another holder in place of one that has died, and retries until there is one or this daemon
    /// [ends](Self::ending).
    pub(crate) async fn replace_holder(&self, exe: &Path) {
        loop {
            let (client, exe) = (self.clone(), exe.to_owned());
            match self.shared.pool.run(move || client.start_holder(&exe)).await {
                Ok(None) => return,
                Ok(Some(pid)) => {
                    return tracing::warn!(pid, "the holder exited; started a new one");
                }
                Err(error) => {
                    tracing::error!(%error, "the holder exited, and a new one cannot be started");
                }
            }
            sleep(HOLDER_RETRY).await;
        }
    }

    /// Sends a pulse immediately, which starts the watchdog of a new holder.
    pub(crate) fn pulse_now(&self) {
        if let Err(error) = self.channel().pulse() {
            tracing::debug!(%error, "cannot send a pulse to the holder");
        }
    }

    /// Sends pulses: the holder kills a daemon that hangs.
    pub(crate) async fn pulse(&self) -> Infallible {
        let expected = self.start_info().watchdog.unwrap_or(PULSE);
        let mut pulse = interval(expected.min(PULSE));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pulse.tick().await;
            self.pulse_now();
            if let Some(store) = self.shared.store.get() {
                store.send_unsent();
            }
        }
    }

    async fn listener(&self, listen_addr: ListenAddr) -> io::Result<OwnedFd> {
        if let Some(listener) = self.listeners().get(&listen_addr) {
            return listener.try_clone();
        }
        let wanted = listen_addr.clone();
        let listener = self.request(move |channel| channel.bind(&wanted)).await?;
        let copy = listener.try_clone()?;
        self.listeners().insert(listen_addr, listener);
        Ok(copy)
    }

    async fn close(&self, listen_addr: ListenAddr) {
        self.listeners().remove(&listen_addr);
        let released = self.request(move |channel| channel.release(&listen_addr)).await;
        log_failure(released, NOT_RELEASED);
    }

    fn start_holder(&self, exe: &Path) -> io::Result<Option<u32>> {
        // Locked until the new holder runs, so that `ending` reaches it.
        let ending = lock(&self.shared.ending);
        if *ending {
            return Ok(None);
        }
        let held = self.copies()?;
        let borrowed: Vec<_> =
            held.iter().map(|(listen_addr, fd)| (listen_addr.clone(), fd.as_fd())).collect();
        let (instance_lock, args) = (lock(&self.shared.lock), [OsString::from(TAKE_OVER)]);
        let Some(instance_lock) = &*instance_lock else { return Ok(None) };
        let handle = forward_to(&self.shared.events);
        let (channel, pid) =
            HolderChannel::replace_holder(exe, &args, instance_lock.as_fd(), &borrowed, handle)?;
        *lock(&self.shared.channel) = channel.clone();
        self.shared.holder.store(pid, Ordering::Relaxed);
        drop(ending);
        self.renew_store();
        self.pulse_now();
        // Listeners that were closed while there was no holder.
        for (listen_addr, _) in held {
            if !self.listeners().contains_key(&listen_addr) {
                log_failure(channel.release(&listen_addr), NOT_RELEASED);
            }
        }
        Ok(Some(pid))
    }

    fn copies(&self) -> io::Result<Vec<(ListenAddr, OwnedFd)>> {
        let copy =
            |(listen_addr, fd): (&ListenAddr, &OwnedFd)| Ok((listen_addr.clone(), fd.try_clone()?));
        self.listeners().iter().map(copy).collect()
    }

    /// Sends a request on a blocking thread, and waits for its answer.
    pub(crate) async fn request<T: Send + 'static>(
        &self,
        send: impl FnOnce(&HolderChannel) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let channel = self.channel();
        self.shared.pool.run(move || send(&channel)).await
    }

    pub(crate) fn channel(&self) -> HolderChannel {
        lock(&self.shared.channel).clone()
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<ListenAddr, OwnedFd>> {
        lock(&self.shared.listeners)
    }
}

impl HolderEvents {
    /// There is always another event: the end of the last holder is one.
    pub(crate) async fn next(&mut self) -> HolderEvent {
        self.0.recv().await.unwrap_or(HolderEvent::HolderGone)
    }
}

/// How many bytes were written to a connection.
fn written(connection: &OwnedFd) -> u64 {
    // If it is not known, every response counts as begun.
    tcp::bytes_written(connection.as_fd()).unwrap_or(u64::MAX)
}

/// The argument by which this program becomes a holder in place of one that died.
pub const TAKE_OVER: &str = "__take-over";

const NOT_RELEASED: &str = "cannot close a listener; the holder keeps it open";

fn forward_to(events: &mpsc::Sender<HolderEvent>) -> impl FnMut(HolderEvent) + Send + 'static {
    let events = events.clone();
    // A daemon that drains handles no event.
    move |event| drop(events.try_send(event))
}

fn log_failure(done: io::Result<()>, what: &str) {
    if let Err(error) = done {
        tracing::warn!(%error, "{what}");
    }
}
