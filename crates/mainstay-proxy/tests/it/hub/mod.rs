//! Hubs with clients on one side and scripted servers on the other.

mod asking;
mod client;
mod contract;
mod handshake;
mod holding;
mod http;
mod isolation;
mod listening;
mod lists;
mod local;
mod logging;
mod requests;
mod restarts;
mod server;
mod site;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use mainstay_proxy::front::Core as _;
use mainstay_proxy::{
    Arrival, Decision, Hub, Hubs, Identity, Isolation, Keeper, Link, Outlook, Ports, Reason, Run,
    SessionRecord, Settings, StreamKey, StreamNews, Witness,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::client::Client;
use self::server::Server;
use crate::soon;

const NAME: &str = "time";
const HOLD: Duration = Duration::from_secs(45);

/// A hub and what it needs of the world.
struct World {
    hub: Arc<Hub>,
    hubs: Hubs,
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
        let notes = Arc::<Notes>::default();
        let hub = Hub::new(NAME, settings, ports(&notes), copy);
        let hubs = Hubs::default();
        hubs.insert(Arc::clone(&hub));
        Self { hub, hubs, notes, generation: AtomicU64::new(0) }
    }

    /// A client whose session is initialized.
    async fn client(&self) -> Client {
        self.client_with(&json!({})).await
    }

    /// As [`World::client`], with these capabilities.
    async fn client_with(&self, capabilities: &Value) -> Client {
        let client = Client::new(self.hubs.open(NAME).unwrap());
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
        self.hub.look(Outlook::Up(Arc::clone(&run)));
        server.run = Some(run);
        server
    }

    /// A new run that answers the handshake.
    async fn enters(&self, capabilities: &Value, arrival: Arrival) -> (Server, Arc<Run>) {
        let (mut server, link) = Server::new();
        let entering = self.hub.enter(Link::Lines(link), arrival);
        let (run, ()) = soon(async { tokio::join!(entering, server.welcomes(capabilities)) }).await;
        (server, run.unwrap())
    }

    /// What is known of the next run.
    fn arrival(&self) -> Arrival {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let after = (generation > 1).then(|| Arc::new(reason()));
        Arrival { generation, after, known: None, epoch: 1, session: None }
    }

    /// The server is being started, or will be.
    fn is_coming(&self, due: Option<Duration>) {
        let due = due.map(|due| (tokio::time::Instant::now() + due).into_std());
        self.hub.look(Outlook::Coming { due, why: Arc::new(reason()) });
    }

    fn is_down(&self) {
        self.hub.look(Outlook::Down { why: Arc::new(reason()), next: None });
    }
}

fn settings() -> Settings {
    Settings {
        hold: HOLD,
        replay: BTreeSet::from(["peek".to_owned()]),
        quiet_restart: true,
        isolate: false,
    }
}

fn reason() -> Reason {
    Reason { text: "exited 3 after 2 h".to_owned(), stderr: vec!["out of paper".to_owned()] }
}

fn ports(notes: &Arc<Notes>) -> Ports {
    Ports {
        keeper: Arc::<Notes>::clone(notes),
        witness: Arc::<Notes>::clone(notes),
        isolation: Arc::<Notes>::clone(notes),
        identity: Identity { name: "mainstay".to_owned(), version: "0".to_owned() },
        wall: || SystemTime::UNIX_EPOCH,
    }
}

/// What a hub told the world.
#[derive(Debug, Default)]
struct Notes {
    records: Mutex<Vec<SessionRecord>>,
    copy: Mutex<Option<Vec<u8>>>,
    causes: Mutex<Vec<&'static str>>,
    unreachable: AtomicU64,
    /// The sessions that want a run, and what they are told of it.
    own: Mutex<Vec<(String, watch::Sender<Outlook>)>>,
}

impl Notes {
    /// What is kept of the sessions.
    fn records(&self) -> Vec<SessionRecord> {
        self.records.lock().unwrap().clone()
    }

    fn causes(&self) -> Vec<&'static str> {
        self.causes.lock().unwrap().clone()
    }

    fn own(&self, session: usize) -> (String, watch::Sender<Outlook>) {
        self.own.lock().unwrap()[session].clone()
    }
}

impl Keeper for Notes {
    fn save(&self, record: SessionRecord) {
        let mut records = self.records.lock().unwrap();
        records.retain(|other| other.id != record.id);
        records.push(record);
    }

    fn touched(&self, _used: Vec<(String, SystemTime)>) {}

    fn remove(&self, id: &str) {
        self.records.lock().unwrap().retain(|record| record.id != id);
    }

    fn save_copy(&self, _server: &str, copy: Vec<u8>) {
        *self.copy.lock().unwrap() = Some(copy);
    }

    fn remove_server(&self, _server: &str) {
        self.records.lock().unwrap().clear();
    }

    fn note(&self, _stream: &StreamKey, _news: StreamNews) {}
}

impl Witness for Notes {
    fn decided(&self, decision: Decision) {
        self.causes.lock().unwrap().push(decision.cause);
    }

    fn unreachable(&self, _server: &str, _generation: u64) {
        self.unreachable.fetch_add(1, Ordering::Relaxed);
    }
}

impl Isolation for Notes {
    fn provide(&self, _server: &str, session: &str) -> watch::Receiver<Outlook> {
        let mut own = self.own.lock().unwrap();
        if let Some((_, outlook)) = own.iter().find(|(id, _)| id == session) {
            return outlook.subscribe();
        }
        let (told, outlook) = watch::channel(Outlook::Coming { due: None, why: Arc::default() });
        own.push((session.to_owned(), told));
        outlook
    }

    fn release(&self, _server: &str, session: &str) {
        self.own.lock().unwrap().retain(|(id, _)| id != session);
    }
}
