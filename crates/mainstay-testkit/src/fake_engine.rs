//! An engine without workloads, for tests that own time and failure.

#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mainstay_core::watchdog::{Processes, ReadPosition};
use mainstay_core::{Cause, Exit, ServerName, ServerSpec, Workload};
use mainstay_engine::{
    Endpoint, Engine, EngineError, Found, FoundState, LogLine, LogRange, News, Observation, RunKey,
    StartError, Started, Stdio,
};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

/// Where the engine says that its containers are.
pub const HOST: &str = "unix:///nowhere/fake.sock";

/// What a fake server does when it is asked to `initialize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Answers as it should.
    Answers,
    /// Answers with an error.
    Refuses,
    /// Says nothing.
    Silent,
}

/// Where a start takes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// Nowhere.
    None,
    /// Before the run exists.
    BeforeItExists,
    /// Between that and the word that it does.
    BeforeItIsTold,
}

/// An engine that a test plays fate for. Clones share one state.
#[derive(Debug, Clone)]
pub struct FakeEngine {
    state: Arc<Mutex<State>>,
    news: broadcast::Sender<News>,
    changes: Arc<watch::Sender<u64>>,
}

#[derive(Debug)]
struct State {
    alive: BTreeMap<RunKey, Run>,
    starts: Vec<(RunKey, Instant)>,
    stops: Vec<RunKey>,
    kills: Vec<RunKey>,
    stacks: Vec<RunKey>,
    manner: Manner,
    cannot_start: Option<String>,
    obeys: bool,
    loses_news: bool,
    delay: Delay,
    /// Why it does not answer.
    away: Option<String>,
    lacks: Option<Lack>,
    released: Vec<ServerName>,
    forgotten: Vec<ServerName>,
}

/// What is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    Images,
    Containers,
}

#[derive(Debug, Default)]
struct Run {
    /// Kept so that the server's end of the pipes is open as long as it lives.
    link: Option<mpsc::Sender<Bytes>>,
    /// How many lines it has read.
    read: u64,
    /// Whether it no longer reads, and whether it is stopped by a signal.
    hangs: bool,
    is_suspended: bool,
}

impl State {
    /// Whether a run reads one more line.
    fn reads_line(&mut self, key: &RunKey) -> bool {
        let run = self.alive.get_mut(key).filter(|run| !run.hangs && !run.is_suspended);
        run.map(|run| run.read += 1).is_some()
    }

    /// Why nothing can be started now.
    fn refusal(&self) -> Option<StartError> {
        let away = self.away.clone().map(|why| StartError::Away { why });
        let removed = (self.lacks == Some(Lack::Containers)).then_some(StartError::Removed);
        away.or(removed).or_else(|| self.cannot_start.clone().map(StartError::Refused))
    }
}

impl Default for FakeEngine {
    fn default() -> Self {
        let state = State {
            alive: BTreeMap::new(),
            starts: Vec::new(),
            stops: Vec::new(),
            kills: Vec::new(),
            stacks: Vec::new(),
            manner: Manner::Answers,
            cannot_start: None,
            obeys: true,
            loses_news: false,
            delay: Delay::None,
            away: None,
            lacks: None,
            released: Vec::new(),
            forgotten: Vec::new(),
        };
        let (news, _) = broadcast::channel(64);
        let (changes, _) = watch::channel(0);
        Self { state: Arc::new(Mutex::new(state)), news, changes: Arc::new(changes) }
    }
}

impl FakeEngine {
    /// How servers behave from now on.
    pub fn set_manner(&self, manner: Manner) {
        self.state().manner = manner;
    }

    /// Starts fail from now on, for this reason.
    pub fn refuse_starts(&self, why: &str) {
        self.state().cannot_start = Some(why.to_owned());
    }

    /// Starts succeed again.
    pub fn allow_starts(&self) {
        self.state().cannot_start = None;
    }

    /// Servers ignore stops from now on.
    pub fn ignore_stops(&self) {
        self.state().obeys = false;
    }

    /// Ends are not reported from now on.
    pub fn lose_news(&self) {
        self.state().loses_news = true;
    }

    /// Starts take as long as the test wants, from now on, or no time again.
    pub fn delay_starts(&self, delay: Delay) {
        self.state().delay = delay;
        self.changed();
    }

    async fn wait_out(&self, delay: Delay) {
        let mut changes = self.changes.subscribe();
        while self.state().delay == delay {
            changes.changed().await.expect("the engine lives as long as this");
        }
    }

    /// A run ends.
    pub fn die(&self, key: &RunKey, exit: Exit) {
        let is_reported = {
            let mut state = self.state();
            state.alive.remove(key).is_some() && !state.loses_news
        };
        if is_reported {
            let stderr = b"last words\n".to_vec();
            // Nobody may be listening.
            self.news.send(News::Exited { key: key.clone(), exit, stderr }).ok();
            self.news.send(News::Gone { key: key.clone(), cause: Cause::Exited(exit) }).ok();
        }
        self.changed();
    }

    /// A run ends like this.
    pub fn end_by(&self, key: &RunKey, cause: Cause) {
        self.state().alive.remove(key);
        self.publish(News::Gone { key: key.clone(), cause });
    }

    /// It becomes known how a run ended that is gone.
    pub fn amend(&self, key: &RunKey, cause: Cause) {
        self.publish(News::Amended { key: key.clone(), cause });
    }

    /// Somebody starts again what that run lives or lived in.
    pub fn restart_by_someone(&self, key: &RunKey) -> RunKey {
        let new = RunKey::new(key.server.clone(), key.run.next());
        {
            let mut state = self.state();
            state.alive.remove(key);
            state.alive.insert(new.clone(), Run::default());
        }
        self.publish(News::Restarted { key: key.clone(), new: new.run, started: started(&new) });
        new
    }

    /// Somebody pauses a run.
    pub fn pause(&self, key: &RunKey) {
        self.publish(News::Paused { key: key.clone() });
    }

    /// Somebody lets a run go on.
    pub fn unpause(&self, key: &RunKey) {
        self.publish(News::Unpaused { key: key.clone() });
    }

    /// The pipes of a run break.
    pub fn cut(&self, key: &RunKey) {
        self.state().alive.get_mut(key).expect("it is alive").link = None;
    }

    /// The engine does not answer from now on.
    pub fn go_away(&self, why: &str) {
        self.state().away = Some(why.to_owned());
        for server in self.servers() {
            self.publish(News::Away { server, why: why.to_owned() });
        }
    }

    /// The engine answers again.
    pub fn come_back(&self) {
        self.state().away = None;
        for server in self.servers() {
            self.publish(News::Back { server });
        }
    }

    /// The engine answers again, which is not reported.
    pub fn answer_quietly(&self) {
        self.state().away = None;
    }

    /// All containers are gone, which the next starts find out.
    pub fn lose_containers(&self) {
        self.state().lacks = Some(Lack::Containers);
    }

    /// No image is there from now on.
    pub fn lack_images(&self) {
        self.state().lacks = Some(Lack::Images);
    }

    /// The servers that were released, with or without being forgotten.
    pub fn released(&self) -> Vec<ServerName> {
        self.state().released.clone()
    }

    /// The servers that were forgotten.
    pub fn forgotten(&self) -> Vec<ServerName> {
        self.state().forgotten.clone()
    }

    /// A run of an earlier daemon.
    pub fn plant(&self, key: RunKey) {
        self.state().alive.insert(key, Run::default());
    }

    /// When runs were started, in order.
    pub fn starts(&self) -> Vec<(RunKey, Instant)> {
        self.state().starts.clone()
    }

    /// Which runs were asked to stop.
    pub fn stops(&self) -> Vec<RunKey> {
        self.state().stops.clone()
    }

    /// Which runs were killed.
    pub fn kills(&self) -> Vec<RunKey> {
        self.state().kills.clone()
    }

    /// A run no longer reads what is sent to it.
    pub fn hang(&self, key: &RunKey) {
        if let Some(run) = self.state().alive.get_mut(key) {
            run.hangs = true;
        }
    }

    /// The process of a run is stopped by a signal, or continues. What it is sent while it is stopped is lost.
    pub fn suspend(&self, key: &RunKey, is_suspended: bool) {
        if let Some(run) = self.state().alive.get_mut(key) {
            run.is_suspended = is_suspended;
        }
    }

    /// The runs whose stacks were logged.
    pub fn stacks(&self) -> Vec<RunKey> {
        self.state().stacks.clone()
    }

    /// The runs that live.
    pub fn alive(&self) -> Vec<RunKey> {
        self.state().alive.keys().cloned().collect()
    }

    /// Waits until that many starts have been made in all, and returns the last one.
    pub async fn started(&self, count: usize) -> RunKey {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some((key, _)) = self.state().starts.get(count - 1) {
                return key.clone();
            }
            changes.changed().await.expect("the engine lives as long as this");
        }
    }

    /// Waits until a run exists, reported or not.
    pub async fn exists(&self, key: &RunKey) {
        let mut changes = self.changes.subscribe();
        while !self.state().alive.contains_key(key) {
            changes.changed().await.expect("the engine lives as long as this");
        }
    }

    fn servers(&self) -> BTreeSet<ServerName> {
        let state = self.state();
        let started = state.starts.iter().map(|(key, _)| key);
        started.chain(state.alive.keys()).map(|key| key.server.clone()).collect()
    }

    fn publish(&self, news: News) {
        // Nobody may be listening.
        self.news.send(news).ok();
        self.changed();
    }

    fn answers(&self) -> Result<(), EngineError> {
        self.state().away.clone().map_or(Ok(()), |why| Err(EngineError::Away(why)))
    }

    fn end(&self, key: &RunKey, signal: i32) {
        let known = self.state().alive.contains_key(key);
        if known {
            self.die(key, Exit::signal(signal));
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics with this lock")
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn prepare(&self, spec: &ServerSpec) -> Result<ServerSpec, StartError> {
        let mut spec = spec.clone();
        if let Workload::Container(container) = &mut spec.workload {
            if self.state().lacks == Some(Lack::Images) {
                return Err(StartError::NoImage { image: container.image.to_string() });
            }
            container.host.get_or_insert_with(|| HOST.to_owned());
        }
        Ok(spec)
    }

    async fn start(&self, key: &RunKey, _spec: &ServerSpec) -> Result<Started, StartError> {
        self.state().starts.push((key.clone(), Instant::now()));
        self.changed();
        self.wait_out(Delay::BeforeItExists).await;
        let refusal = {
            let mut state = self.state();
            let refusal = state.refusal();
            if refusal.is_none() {
                state.alive.insert(key.clone(), Run::default());
            }
            refusal
        };
        self.changed();
        self.wait_out(Delay::BeforeItIsTold).await;
        refusal.map_or_else(|| Ok(started(key)), Err)
    }

    async fn stop(&self, key: &RunKey, _grace: Duration) -> Result<(), EngineError> {
        self.answers()?;
        let obeys = {
            let mut state = self.state();
            state.stops.push(key.clone());
            state.obeys
        };
        if obeys {
            self.end(key, 15);
        }
        Ok(())
    }

    async fn kill(&self, key: &RunKey) -> Result<(), EngineError> {
        self.answers()?;
        self.state().kills.push(key.clone());
        self.end(key, 9);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, EngineError> {
        let state = match self.answers() {
            Ok(()) => FoundState::Alive { pid: None, container: None, age: Duration::ZERO },
            Err(_) => FoundState::Unknown,
        };
        Ok(self.alive().into_iter().map(|key| Found { key, state: state.clone() }).collect())
    }

    fn watch(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    async fn logs(
        &self,
        _server: &ServerName,
        _range: LogRange,
    ) -> Result<mpsc::Receiver<LogLine>, EngineError> {
        Ok(mpsc::channel(1).1)
    }

    async fn attach(&self, key: &RunKey) -> Result<Stdio, EngineError> {
        self.answers()?;
        let (to_server, mut requests) = mpsc::channel::<Bytes>(16);
        let (answers, from_server) = mpsc::channel(16);
        let (junk, _) = mpsc::channel(1);
        let manner = {
            let mut state = self.state();
            let manner = state.manner;
            let gone = || EngineError::NoSuchRun(key.clone());
            state.alive.get_mut(key).ok_or_else(gone)?.link = Some(answers.clone());
            manner
        };
        let (state, run) = (Arc::clone(&self.state), key.clone());
        let weak = answers.downgrade();
        drop(answers);
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                if !mainstay_core::lock(&state).reads_line(&run) {
                    continue;
                }
                let answer = answer(&request, manner);
                if let (Some(answer), Some(link)) = (answer, weak.upgrade()) {
                    link.send(answer).await.ok();
                }
            }
        });
        Ok(Stdio {
            to_server,
            from_server,
            junk,
            written: watch::channel(0).1,
            consumed: watch::channel(0).0,
            earlier_output: None,
            interruptions: None,
        })
    }

    async fn endpoint(&self, _key: &RunKey, port: u16) -> Result<Endpoint, EngineError> {
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))].into())
    }

    async fn observe(&self, key: &RunKey) -> Result<Observation, EngineError> {
        let state = self.state();
        let run = state.alive.get(key).ok_or_else(|| EngineError::NoSuchRun(key.clone()))?;
        let (switches, is_active) = (run.read, false);
        let suspended = run.is_suspended.then_some(7);
        let processes = Some(Processes { switches, is_active, suspended, waits_for: None });
        Ok(Observation {
            input: Some(ReadPosition { line: run.read, unread: 1 }),
            connections: None,
            processes,
        })
    }

    async fn log_stacks(&self, key: &RunKey) -> Result<(), EngineError> {
        self.state().stacks.push(key.clone());
        Ok(())
    }

    async fn stderr_tail(&self, _key: &RunKey) -> Result<Vec<u8>, EngineError> {
        Ok(Vec::new())
    }

    async fn release(&self, server: &ServerName) -> Result<(), EngineError> {
        self.state().released.push(server.clone());
        self.changed();
        Ok(())
    }

    async fn forget(&self, server: &ServerName) -> Result<(), EngineError> {
        self.release(server).await?;
        self.state().forgotten.push(server.clone());
        Ok(())
    }
}

/// What a fake run shows of itself.
fn started(key: &RunKey) -> Started {
    let generation = key.run.generation();
    let container = Some(format!("{}-container", key.server));
    Started { pid: u32::try_from(1000 + generation).ok(), container, replaced: None }
}

fn answer(request: &Bytes, manner: Manner) -> Option<Bytes> {
    let request: Value = serde_json::from_slice(request).ok()?;
    let id = request.get("id")?;
    let answer = match (request["method"].as_str()?, manner) {
        (_, Manner::Silent) => return None,
        ("initialize", Manner::Refuses) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": "not today"}})
        }
        ("initialize", Manner::Answers) => json!({"jsonrpc": "2.0", "id": id, "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "serverInfo": {"name": "fake", "version": "1"},
        }}),
        _ => json!({"jsonrpc": "2.0", "id": id, "result": {}}),
    };
    Some(answer.to_string().into())
}
