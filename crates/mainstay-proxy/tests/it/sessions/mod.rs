//! Servers with clients on one side and scripted servers on the other.

mod asking;
mod client;
mod contract;
mod daemons;
mod daemons_contract;
mod daemons_http;
mod daemons_messages;
mod daemons_site;
mod handshake;
mod holding;
mod http;
mod interrupted;
mod interruptions;
mod isolation;
mod listening;
mod lists;
mod local;
mod logging;
mod lost_records;
mod many_sessions;
mod pipelining;
mod requests;
mod restarts;
mod server;
mod site;
mod stdio_client;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_proxy::{
    AttachedRun, Availability, Identity, Ports, Reason, RecordLookup, Report, RunInfo, Sent,
    SessionClock, SessionIds, SessionRecord, SessionStore, Settings, StateStore, StreamChange,
    StreamKey, StreamRecord, UpstreamTransport, Written,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::client::Client;
use self::server::Server;
use crate::soon;
use mainstay_proxy::{ServerHandle, Servers};

const NAME: &str = "time";
const HOLD: Duration = Duration::from_secs(45);
const SETTLE: Duration = Duration::from_millis(600);

/// A proxy and what it needs of the world.
struct World {
    proxy: ServerHandle,
    servers: Arc<Servers>,
    notes: Arc<Notes>,
    generation: AtomicU64,
}

impl World {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: Settings) -> Self {
        Self::restored(settings, None)
    }

    fn restored(settings: Settings, copy: Option<&[u8]>) -> Self {
        Self::on(Arc::default(), settings, copy)
    }

    fn on(notes: Arc<Notes>, settings: Settings, copy: Option<&[u8]>) -> Self {
        let proxy = ServerHandle::new(NAME, settings, ports(&notes), copy);
        let servers = Arc::<Servers>::default();
        servers.insert(proxy.clone());
        Self { proxy, servers, notes, generation: AtomicU64::new(0) }
    }

    /// This daemon is killed: another one, of which nobody has run anything yet, with what was kept.
    fn killed(&self) -> Self {
        self.killed_with(settings())
    }

    /// A daemon that this one has given way to.
    fn replaced(&self) -> Self {
        self.followed_by(settings(), true)
    }

    fn killed_with(&self, settings: Settings) -> Self {
        self.followed_by(settings, false)
    }

    fn followed_by(&self, settings: Settings, has_given_way: bool) -> Self {
        let world = Self::on(Arc::new(self.notes.copied()), settings, None);
        world.generation.store(self.generation.load(Ordering::Relaxed), Ordering::Relaxed);
        for record in world.notes.records() {
            world.proxy.restore(record, |_| false);
        }
        for record in world.notes.streams() {
            assert!(
                world.servers.recover(&world.proxy, record, has_given_way),
                "its session was kept"
            );
        }
        world
    }

    /// The newest run is found alive. What it wrote meanwhile may be past.
    async fn finds(&self, before: &Server, past: &[Value]) -> Server {
        let (mut server, mut link) = Server::new();
        link.earlier_output =
            (!past.is_empty()).then(|| past.iter().map(|line| line.to_string().into()).collect());
        server.wrote(before.lines());
        let known = before.run.as_ref().unwrap().run.hello.as_ref().clone();
        let generation = self.generation.load(Ordering::Relaxed);
        let arrival =
            RunInfo { generation, after: None, known: Some(known), epoch: 2, session: None };
        let run =
            soon(self.proxy.attach_run(UpstreamTransport::Lines(link), arrival)).await.unwrap();
        self.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
        server.run = Some(run);
        server
    }

    /// A client whose session is initialized.
    async fn client(&self) -> Client {
        self.client_with(&json!({})).await
    }

    /// As [`World::client`], with these capabilities.
    async fn client_with(&self, capabilities: &Value) -> Client {
        let client = Client::new(self.servers.open(NAME).unwrap());
        client.initializes(capabilities).await;
        client
    }

    /// A run that offers nothing that could be listed is up.
    async fn serves(&self) -> Server {
        self.serves_with(&json!({})).await
    }

    /// As [`World::serves`], with these capabilities.
    async fn serves_with(&self, capabilities: &Value) -> Server {
        let (mut server, run) = self.enters(capabilities, self.arrival()).await;
        self.proxy.set_availability(Availability::Up(Arc::clone(&run.run)));
        server.run = Some(run);
        server
    }

    /// A new run that answers the handshake.
    async fn enters(&self, capabilities: &Value, arrival: RunInfo) -> (Server, AttachedRun) {
        let (mut server, link) = Server::new();
        let entering = self.proxy.attach_run(UpstreamTransport::Lines(link), arrival);
        let (run, ()) = soon(async { tokio::join!(entering, server.welcomes(capabilities)) }).await;
        (server, run.unwrap())
    }

    /// What is known of the next run.
    fn arrival(&self) -> RunInfo {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let after = (generation > 1).then(|| Arc::new(reason()));
        RunInfo { generation, after, known: None, epoch: 1, session: None }
    }

    /// The server is being started, or will be.
    fn is_coming(&self, due: Option<Duration>) {
        let due = due.map(|due| (tokio::time::Instant::now() + due).into_std());
        self.proxy.set_availability(Availability::Coming { due, why: Arc::new(reason()) });
    }

    fn is_down(&self) {
        self.proxy.set_availability(Availability::Down { why: Arc::new(reason()) });
    }
}

fn settings() -> Settings {
    Settings {
        hold: HOLD,
        replay: BTreeSet::from(["peek".to_owned()]),
        quiet_restart: true,
        // A call that is given up is cancelled.
        late_results: false,
        block_limit: None,
        isolate: false,
        isolate_idle: Duration::from_secs(1800),
        call_timeouts: mainstay_proxy::CallTimeouts::default(),
    }
}

fn reason() -> Reason {
    Reason { text: "exited 3 after 2 h".to_owned(), stderr: vec!["out of paper".to_owned()] }
}

fn ports(notes: &Arc<Notes>) -> Ports {
    let (reported, asked) = (Arc::clone(notes), Arc::clone(notes));
    Ports {
        store: Arc::<Notes>::clone(notes),
        report: Arc::new(move |report| reported.note_report(report)),
        last_line: Arc::new(move |_| {
            let line = asked.last_line.lock().unwrap().clone();
            Box::pin(async { line })
        }),
        identity: Identity { name: "mainstay".to_owned(), version: "0".to_owned() },
        clock: SessionClock::resumed(Duration::ZERO, tokio::time::Instant::now().into_std()),
        ids: SessionIds::new(&[7; 32], notes.era),
    }
}

/// What a proxy told the world.
#[derive(Debug, Default)]
struct Notes {
    /// The era of the records.
    era: u32,
    records: Mutex<Vec<SessionRecord>>,
    copy: Mutex<Option<Vec<u8>>>,
    causes: Mutex<Vec<&'static str>>,
    unreachable: AtomicU64,
    streams: Mutex<BTreeMap<(String, u64), StreamRecord>>,
    /// How often something was noted.
    noted: AtomicU64,
    /// The sessions that want a run.
    own: Mutex<Vec<String>>,
    /// Whether the disk takes nothing.
    stalled: watch::Sender<bool>,
    /// The last line that the server wrote to standard error.
    last_line: Mutex<Option<String>>,
}

impl Notes {
    /// What is kept of the sessions.
    fn records(&self) -> Vec<SessionRecord> {
        self.records.lock().unwrap().clone()
    }

    /// What is kept of the streams.
    fn streams(&self) -> Vec<StreamRecord> {
        self.streams.lock().unwrap().values().cloned().collect()
    }

    /// What is kept of the streams of requests.
    fn requests(&self) -> Vec<StreamRecord> {
        self.streams().into_iter().filter(|stream| stream.request.is_some()).collect()
    }

    fn noted(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    /// What another daemon finds.
    fn copied(&self) -> Self {
        let streams = Mutex::new(self.streams.lock().unwrap().clone());
        Self { era: self.era, records: Mutex::new(self.records()), streams, ..Self::default() }
    }

    fn causes(&self) -> Vec<&'static str> {
        self.causes.lock().unwrap().clone()
    }

    fn own(&self, session: usize) -> String {
        self.own.lock().unwrap()[session].clone()
    }
}

impl StateStore for Notes {
    fn save(&self, record: SessionRecord) {
        let mut records = self.records.lock().unwrap();
        records.retain(|other| other.id != record.id);
        records.push(record);
    }

    fn touched(&self, _now: Duration, _used: Vec<(String, Duration)>) {}

    fn move_to_disk(&self, record: SessionRecord) -> bool {
        self.streams.lock().unwrap().retain(|(session, _), _| *session != record.id);
        self.save(record);
        true
    }

    fn remove(&self, id: &str) {
        self.records.lock().unwrap().retain(|record| record.id != id);
    }

    fn save_copy(&self, _server: &str, copy: Vec<u8>) {
        *self.copy.lock().unwrap() = Some(copy);
    }

    fn remove_server(&self, _server: &str) {
        self.records.lock().unwrap().clear();
    }

    fn append_to_journal(&self, stream: &StreamKey, change: StreamChange) -> bool {
        self.noted.fetch_add(1, Ordering::Relaxed);
        let mut streams = self.streams.lock().unwrap();
        let key = (stream.session.to_string(), stream.number);
        if change == StreamChange::Over {
            streams.remove(&key);
            return true;
        }
        let record = streams.entry(key).or_insert_with(|| StreamRecord {
            key: stream.clone(),
            request: None,
            sent: None,
            attempts: 0,
            messages: Vec::new(),
            answer: None,
            abandoned: None,
        });
        match change {
            StreamChange::Begun(request) => record.request = Some(request),
            StreamChange::BegunSent(request, sent, attempts) => {
                (record.request, record.sent) = (Some(request), Some(sent));
                record.attempts = attempts;
            }
            StreamChange::Sent(sent) => {
                // The line of a request is noted after the run.
                let is_known = record.sent == Some(Sent { line: None, ..sent });
                record.attempts += u32::from(!(is_known && sent.line.is_some()));
                record.sent = Some(sent);
            }
            StreamChange::Message(number, message) => record.messages.push((number, message)),
            StreamChange::Answered(number, answer) => record.answer = Some((number, answer)),
            StreamChange::Abandoned(abandoned) => record.abandoned = Some(abandoned),
            StreamChange::Over => unreachable!("it is removed above"),
        }
        true
    }
}

impl SessionStore for Notes {
    fn written(&self) -> Written {
        let mut stalled = self.stalled.subscribe();
        Box::pin(async move { drop(stalled.wait_for(|stalled| !stalled).await) })
    }

    fn find(&self, id: &str) -> RecordLookup {
        let found = self.records().into_iter().find(|record| record.id == id);
        Box::pin(async {
            // As from a disk, it is there a moment later.
            tokio::task::yield_now().await;
            Ok(found)
        })
    }
}

impl Notes {
    fn note_report(&self, report: Report) {
        match report {
            Report::Decision(decision) => self.causes.lock().unwrap().push(decision.cause),
            Report::Unreachable(..) => drop(self.unreachable.fetch_add(1, Ordering::Relaxed)),
            Report::StartSessionRun(session) => {
                let mut own = self.own.lock().unwrap();
                if !own.iter().any(|id| **id == *session) {
                    own.push(session.to_string());
                }
            }
            Report::StopSessionRun(session, _) => {
                self.own.lock().unwrap().retain(|id| **id != *session);
            }
            Report::Demand(_) | Report::Observe(..) => {}
        }
    }
}
