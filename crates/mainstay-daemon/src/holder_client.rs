//! The holder, as its daemon sees it: it keeps the listeners and the lock of the instance through the
//! deaths of daemons, and starts the next one.
//!
//! A daemon has a descriptor of everything that its holder holds, so if the holder dies it starts
//! another one and hands all of it over. Nothing is refused in between: who connects waits in the
//! listeners' queues, which live as long as either of the two.

mod connections;

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use mainstay_api::Instance;
use mainstay_hold::holder::{ConnectionStore, HolderEvent, Link, Place, Unfinished, take_stdin};
use mainstay_hold::limits::{HOLDER_RETRY, PULSE};
use mainstay_hold::tcp;
use mainstay_proxy::front::http::{
    self, ConnectionBudget, Drain, PassedOn, Pending, UnfinishedResponse,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::connections::{HeldConnection, ListenerConnectionStore};
use crate::blocking::BlockingPool;
use crate::capacity::Capacity;

/// What is held for this daemon; clones share it.
#[derive(Clone)]
pub struct HolderClient {
    shared: Arc<Shared>,
}

/// What a daemon is told by its holder.
pub struct HolderEvents(mpsc::UnboundedReceiver<HolderEvent>);

/// How a daemon was started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Circumstances {
    /// Another daemon still serves; it gives way when this one is prepared.
    pub(crate) standby: bool,
    /// Why the daemon that was to take the last one's place could not.
    pub(crate) replacement_failed: Option<String>,
    /// What the last daemon said when it died.
    pub(crate) last_output: Option<String>,
    /// How often the holder wants to hear that this daemon lives.
    pub(crate) watchdog: Option<Duration>,
    /// Whether the holder speaks version 1 of its protocol (Mainstay 0.1.0).
    pub(crate) holder_is_outdated: bool,
}

struct Shared {
    link: Mutex<Link>,
    /// For requests that wait for an answer. Two threads, so that a listener does not wait for the start of a
    /// holder.
    pool: BlockingPool,
    holder: AtomicU32,
    /// Gone when this daemon has let go of everything.
    lock: Mutex<Option<OwnedFd>>,
    /// Every listener, under the name that it was asked for by.
    listeners: Mutex<HashMap<Place, OwnedFd>>,
    circumstances: Circumstances,
    obey: mpsc::UnboundedSender<HolderEvent>,
    /// Connections of the daemon before this one, by where they came to.
    connections: Mutex<HashMap<Place, Vec<PassedOn>>>,
    /// Set when this daemon serves, unless the holder cannot be told.
    store: OnceLock<ConnectionStore>,
    /// Shared by all listeners.
    connection_budget: Arc<ConnectionBudget>,
    /// Whether this daemon ends for good. Locked while another holder is started.
    ending: Mutex<bool>,
    /// Set when others go on with the listeners: how.
    giving_way: watch::Sender<Option<Drain>>,
}

impl HolderClient {
    /// Takes over from the holder, whose socket is standard input.
    pub fn connect() -> io::Result<(Self, HolderEvents)> {
        let socket = take_stdin()?;
        let (obey, holder_events) = mpsc::unbounded_channel();
        let (link, welcome) = Link::take_up(socket, obeying(&obey))?;
        let circumstances = Circumstances {
            standby: welcome.standby,
            replacement_failed: welcome.replacement_failed,
            last_output: welcome.last_output,
            watchdog: welcome.watchdog,
            holder_is_outdated: welcome.holder_is_outdated,
        };
        let shared = Shared {
            link: Mutex::new(link),
            pool: BlockingPool::new(2),
            holder: AtomicU32::new(welcome.holder_pid),
            lock: Mutex::new(Some(welcome.lock)),
            listeners: Mutex::new(welcome.listeners.into_iter().collect()),
            circumstances,
            obey,
            connections: Mutex::default(),
            store: OnceLock::new(),
            connection_budget: ConnectionBudget::new(Capacity::of_this_process().http),
            ending: Mutex::default(),
            giving_way: watch::Sender::new(None),
        };
        Ok((Self { shared: Arc::new(shared) }, HolderEvents(holder_events)))
    }

    /// Tells why this daemon cannot start, to whoever started it.
    pub fn failed(&self, word: &[u8]) -> io::Result<()> {
        self.link().failed(word)
    }

    pub(crate) fn circumstances(&self) -> &Circumstances {
        &self.shared.circumstances
    }

    /// The holder's process.
    pub(crate) fn holder(&self) -> u32 {
        self.shared.holder.load(Ordering::Relaxed)
    }

    /// A listener at this address. Whoever connected since the last daemon accepted is in its queue.
    pub(crate) async fn listen(&self, addr: SocketAddr) -> io::Result<TcpListener> {
        let listener = std::net::TcpListener::from(self.have(Place::Tcp(addr)).await?);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Whether whoever is served over TCP now would be at this address.
    pub(crate) fn check(&self, addr: SocketAddr) -> io::Result<()> {
        let listeners = self.listeners();
        let serves = listeners.keys().any(|place| matches!(place, Place::Tcp(_)));
        if !serves || listeners.contains_key(&Place::Tcp(addr)) {
            return Ok(());
        }
        std::net::TcpListener::bind(addr).map(drop)
    }

    /// The control socket. If its file was removed since the last call, it is bound again.
    pub(crate) async fn listen_for_commands(&self, dir: &Path) -> io::Result<UnixListener> {
        let place = Place::Unix { dir: dir.to_owned(), name: Instance::SOCKET.to_owned() };
        if !dir.join(Instance::SOCKET).exists() {
            self.listeners().remove(&place);
        }
        let listener = std::os::unix::net::UnixListener::from(self.have(place).await?);
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    }

    /// Nobody is to be listened to at this address any more.
    pub(crate) async fn release(&self, addr: SocketAddr) {
        self.let_go(Place::Tcp(addr)).await;
    }

    /// Lets go of what the last daemon listened at and this one does not.
    pub(crate) async fn release_others(&self, used: &[SocketAddr]) {
        let unused = |place: &Place| match place {
            Place::Tcp(addr) => !used.contains(addr),
            Place::Unix { .. } => false,
        };
        lock(&self.shared.connections).retain(|place, _| !unused(place));
        let unused: Vec<Place> =
            self.listeners().keys().filter(|place| unused(place)).cloned().collect();
        for place in unused {
            self.let_go(place).await;
        }
    }

    /// This daemon could serve as soon as the present one gives way.
    pub(crate) fn prepared(&self) -> io::Result<()> {
        self.link().prepared()
    }

    /// The connection budget that all listeners share.
    pub(crate) fn connection_budget(&self) -> Arc<ConnectionBudget> {
        Arc::clone(&self.shared.connection_budget)
    }

    /// Takes over the connections of the daemon before this one, which has given way or died. From now on the holder
    /// keeps copies of this daemon's connections.
    pub(crate) fn take_connections(&self) {
        let link = self.link();
        match ConnectionStore::new(link.clone()) {
            Ok(store) => drop(self.shared.store.set(store)),
            Err(error) => tracing::warn!(%error, "{NOT_STORED}"),
        }
        let mut all = lock(&self.shared.connections);
        let mut add = |place, connection: OwnedFd, pending| {
            let store = self.shared.store.get().filter(|_| matches!(place, Place::Tcp(_)));
            let stored = store.and_then(|store| store.add_and_wait(&place, connection.as_fd()));
            let written = store.map_or(0, |_| written(&connection));
            let mut passed_on = PassedOn::new(connection, pending, written);
            if let Some(stored) = stored {
                passed_on = passed_on.stored(HeldConnection::boxed(stored, &place));
            }
            all.entry(place).or_default().push(passed_on);
        };
        for (place, connection) in link.connections() {
            add(place, connection, Pending::Nothing);
        }
        // If a state cannot be read, the connection is closed, and its client reconnects.
        for (Unfinished { place, state }, connection) in link.responses() {
            if let Some(response) = UnfinishedResponse::decode(&state) {
                add(place, connection, Pending::Response(response));
            }
        }
        for (Unfinished { place, state }, connection) in link.interrupted() {
            if let Some(pending) = Pending::decode(&state, written(&connection)) {
                add(place, connection, pending);
            }
        }
    }

    /// Where copies of the connections that come to this address are kept.
    pub(crate) fn store(&self, addr: SocketAddr) -> Option<Arc<dyn http::ConnectionStore>> {
        Some(Arc::new(ListenerConnectionStore::new(self.shared.store.get()?, Place::Tcp(addr))))
    }

    /// The holder has executed another program, and has no connections.
    pub(crate) fn renew_store(&self) {
        if let Some(store) = self.shared.store.get() {
            store.replace_holder(self.link());
        }
    }

    /// The connections that came to this address before there was this daemon.
    pub(crate) fn connections(&self, addr: SocketAddr) -> Vec<PassedOn> {
        lock(&self.shared.connections).remove(&Place::Tcp(addr)).unwrap_or_default()
    }

    /// The connections of `mainstay connect` that came before there was this daemon.
    pub(crate) fn private_connections(&self) -> Vec<PassedOn> {
        let mut all = lock(&self.shared.connections);
        let private = all.extract_if(|place, _| matches!(place, Place::Unix { .. }));
        private.flat_map(|(_, connections)| connections).collect()
    }

    /// Passes on to the next daemon the connections of `mainstay connect`.
    pub(crate) fn pass_on_private(&self, connections: &[PassedOn]) {
        // Where the socket is does not matter to the next daemon.
        let place = Place::Unix { dir: "/".into(), name: Instance::SOCKET.to_owned() };
        self.pass_on_all(&place, connections);
    }

    /// Passes on to the next daemon the connections that came to this address.
    pub(crate) fn pass_on(&self, addr: SocketAddr, connections: &[PassedOn]) {
        self.pass_on_all(&Place::Tcp(addr), connections);
    }

    fn pass_on_all(&self, place: &Place, connections: &[PassedOn]) {
        let link = self.link();
        let (mut at_rest, mut unfinished) = (Vec::new(), Vec::new());
        for PassedOn { socket, pending, .. } in connections {
            let place = place.clone();
            match pending {
                Pending::Nothing => at_rest.push((place, socket.as_fd())),
                Pending::Response(response) => {
                    let state = response.encode();
                    unfinished.push((Unfinished { place, state }, socket.as_fd()));
                }
                // It was answered here, or is closed.
                Pending::Interrupted(_) => {}
            }
        }
        let passed_on = link.pass_on(&at_rest).and_then(|()| link.pass_on_responses(&unfinished));
        if let Err(error) = passed_on {
            tracing::warn!(%error, "connections are closed");
        }
    }

    /// This daemon serves. The holder knows it when this returns.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let link = self.link();
        let ready = self.shared.pool.run(move || link.ready()).await;
        if let Some(store) = self.shared.store.get() {
            store.ready();
        }
        ready
    }

    /// Asks for a daemon that takes this one's place.
    pub(crate) fn replace(&self, exe: &Path, fallback: Option<&Path>) -> io::Result<()> {
        self.link().replace(exe, fallback)
    }

    /// Nothing more is accepted: another daemon goes on with all listeners, now or later.
    pub(crate) fn give_way(&self, how: Drain) {
        self.shared.giving_way.send_replace(Some(how));
    }

    /// Whether this daemon [gives way](Self::give_way).
    pub(crate) fn is_giving_way(&self) -> bool {
        self.shared.giving_way.borrow().is_some()
    }

    /// Resolves when this daemon [gives way](Self::give_way), and says how.
    pub(crate) async fn giving_way(&self) -> Drain {
        let mut given = self.shared.giving_way.subscribe();
        let given = given.wait_for(Option::is_some).await;
        // The sender lives as long as this.
        given.ok().and_then(|how| *how).unwrap_or(Drain::Leave)
    }

    /// This daemon has let go of everything, so that the next one may begin. That it does is certain when
    /// this succeeds.
    pub(crate) async fn yielded(&self) -> io::Result<()> {
        let link = self.link();
        self.shared.pool.run(move || link.yielded()).await
    }

    /// Lets go of the listeners and of the lock, which the next daemon has.
    pub(crate) fn let_go_of_all(&self) {
        self.listeners().clear();
        lock(&self.shared.lock).take();
    }

    /// Sees to it that whoever this daemon was told to give way to does not serve.
    pub(crate) async fn end_successor(&self) -> io::Result<()> {
        let link = self.link();
        self.shared.pool.run(move || link.end_successor()).await
    }

    /// This daemon ends for good. Comes back when nobody can connect any more. No other holder is started
    /// from here on, and one that is being started is told, too.
    pub(crate) async fn ending(&self) {
        self.listeners().clear();
        let held = self.clone();
        let ended = self.shared.pool.run(move || {
            *lock(&held.shared.ending) = true;
            held.link().ending()
        });
        report(ended.await, "the listeners stay with the holder");
    }

    /// Kills a holder of Mainstay 0.1.0, which accepts commands from every process that has a copy of its
    /// daemon's socket, as all servers of 0.1.0 have. [`HolderEvent::HolderGone`] follows, and a new holder is
    /// started.
    pub(crate) async fn kill_outdated_holder(&self) {
        if !self.circumstances().holder_is_outdated {
            return;
        }
        let link = self.link();
        match self.shared.pool.run(move || link.kill_holder()).await {
            Ok(()) => tracing::info!("killed the holder of version 0.1.0"),
            failed => {
                report(failed, "cannot kill the holder of version 0.1.0; it is still running");
            }
        }
    }

    /// Starts another holder in place of one that has died, and tries until there is one or this daemon
    /// [ends](Self::ending).
    pub(crate) async fn replace_holder(&self, exe: &Path) {
        loop {
            let (held, exe) = (self.clone(), exe.to_owned());
            match self.shared.pool.run(move || held.start_holder(&exe)).await {
                Ok(None) => return,
                Ok(Some(pid)) => {
                    return tracing::warn!(pid, "the holder exited; started a new one");
                }
                Err(error) => {
                    tracing::error!(%error, "the holder has died, and no other can be started");
                }
            }
            sleep(HOLDER_RETRY).await;
        }
    }

    /// Sends a pulse immediately, which starts the watchdog of a new holder.
    pub(crate) fn pulse_now(&self) {
        if let Err(error) = self.link().pulse() {
            tracing::debug!(%error, "the holder does not hear us");
        }
    }

    /// Tells the holder now and then that this daemon lives: it ends one that hangs.
    pub(crate) async fn pulse(&self) -> Infallible {
        let wanted = self.circumstances().watchdog.unwrap_or(PULSE);
        let mut pulse = interval(wanted.min(PULSE));
        pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pulse.tick().await;
            self.pulse_now();
            if let Some(store) = self.shared.store.get() {
                store.send_unsent();
            }
        }
    }

    async fn have(&self, place: Place) -> io::Result<OwnedFd> {
        if let Some(listener) = self.listeners().get(&place) {
            return listener.try_clone();
        }
        let (link, wanted) = (self.link(), place.clone());
        let listener = self.shared.pool.run(move || link.bind(&wanted)).await?;
        let ours = listener.try_clone()?;
        self.listeners().insert(place, listener);
        Ok(ours)
    }

    async fn let_go(&self, place: Place) {
        self.listeners().remove(&place);
        let link = self.link();
        let released = self.shared.pool.run(move || link.release(&place)).await;
        report(released, STAYS);
    }

    fn start_holder(&self, exe: &Path) -> io::Result<Option<u32>> {
        // Kept until there is one, so that whoever ends meanwhile tells the new one of it.
        let ending = lock(&self.shared.ending);
        if *ending {
            return Ok(None);
        }
        let held = self.copies()?;
        let borrowed: Vec<_> = held.iter().map(|(place, fd)| (place.clone(), fd.as_fd())).collect();
        let (instance_lock, args) = (lock(&self.shared.lock), [OsString::from(TAKE_OVER)]);
        let Some(instance_lock) = &*instance_lock else { return Ok(None) };
        let obey = obeying(&self.shared.obey);
        let (link, pid) = Link::replace_holder(exe, &args, instance_lock.as_fd(), &borrowed, obey)?;
        *lock(&self.shared.link) = link.clone();
        self.shared.holder.store(pid, Ordering::Relaxed);
        drop(ending);
        self.renew_store();
        self.pulse_now();
        // What was let go of meanwhile, when there was nobody to tell.
        for (place, _) in held {
            if !self.listeners().contains_key(&place)
                && let Err(error) = link.release(&place)
            {
                tracing::warn!(%error, "{STAYS}");
            }
        }
        Ok(Some(pid))
    }

    /// Every listener once more.
    fn copies(&self) -> io::Result<Vec<(Place, OwnedFd)>> {
        let copy = |(place, fd): (&Place, &OwnedFd)| Ok((place.clone(), fd.try_clone()?));
        self.listeners().iter().map(copy).collect()
    }

    fn link(&self) -> Link {
        lock(&self.shared.link).clone()
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<Place, OwnedFd>> {
        lock(&self.shared.listeners)
    }
}

impl HolderEvents {
    /// The next order. There is always another one: the last holder's end is one.
    pub(crate) async fn next(&mut self) -> HolderEvent {
        self.0.recv().await.unwrap_or(HolderEvent::HolderGone)
    }
}

/// How many bytes were written to a connection.
fn written(connection: &OwnedFd) -> u64 {
    // If it is not known, every response counts as begun.
    tcp::bytes_written(connection.as_fd()).unwrap_or(u64::MAX)
}

/// The word by which this program becomes a holder in place of one that died.
pub const TAKE_OVER: &str = "__take-over";

/// What it means that the holder keeps no copies of connections.
const NOT_STORED: &str = "connections will not survive a kill of this daemon";

/// What becomes of a listener that cannot be released.
const STAYS: &str = "a listener stays with the holder";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mainstay_core::lock(mutex)
}

/// Passes orders on; a daemon that has ended obeys none.
fn obeying(obey: &mpsc::UnboundedSender<HolderEvent>) -> impl FnMut(HolderEvent) + Send + 'static {
    let obey = obey.clone();
    move |order| drop(obey.send(order))
}

fn report(done: io::Result<()>, what: &str) {
    if let Err(error) = done {
        tracing::warn!(%error, "{what}");
    }
}
