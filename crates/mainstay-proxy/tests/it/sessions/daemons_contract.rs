//! The replay contract across daemons, whatever dies when.
//!
//! A client over lines makes calls of a stdio server. The daemon is killed at any moment, and with it, or
//! not, the run. A call that the client is told to be pending is answered by the next daemon; one that was
//! too young to be written down is the client's own affair from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use tokio::time::sleep;

use super::client::text;
use super::stdio_client::StdioClient;
use super::{Server, World};

#[derive(Debug, Clone, Copy)]
enum Event {
    /// The client calls a tool.
    Call {
        safe: bool,
    },
    /// The server answers the call of that number among those it has.
    Answer(usize),
    /// The daemon dies, and the run with it or not.
    Kill {
        run_too: bool,
    },
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<bool>().prop_map(|safe| Event::Call { safe }),
        3 => (0..4_usize).prop_map(Event::Answer),
        2 => any::<bool>().prop_map(|run_too| Event::Kill { run_too }),
        3 => (1..400_u64).prop_map(Event::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn the_contract_holds_across_daemons(events in prop::collection::vec(event(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut scene = Scene::begins().await;
            for event in events {
                scene.does(event).await;
            }
            scene.ends().await;
        });
    }
}

struct Scene {
    world: World,
    server: Server,
    stdio_client: StdioClient,
    kills: u32,
    /// The calls that the present run has and has not answered.
    with_server: Vec<Value>,
    /// Whether a call is safe, by its id.
    calls: BTreeMap<u64, bool>,
    /// The calls that wait for an answer.
    open: BTreeSet<u64>,
    executions: BTreeMap<u64, u32>,
}

impl Scene {
    async fn begins() -> Self {
        let world = World::new();
        let server = world.serves().await;
        let (stdio_client, _) = StdioClient::opens(&world).await;
        Self {
            world,
            server,
            stdio_client,
            kills: 0,
            with_server: Vec::new(),
            calls: BTreeMap::new(),
            open: BTreeSet::new(),
            executions: BTreeMap::new(),
        }
    }

    async fn does(&mut self, event: Event) {
        match event {
            Event::Call { safe } => {
                let id = self.calls.len() as u64 + 1;
                self.calls.insert(id, safe);
                self.open.insert(id);
                self.stdio_client.calls(id, if safe { "peek" } else { "poke" }).await;
            }
            Event::Answer(number) if number < self.with_server.len() => {
                let call = self.with_server.remove(number);
                self.server.returns(&call, &call["params"]["key"].to_string()).await;
            }
            Event::Answer(_) => {}
            Event::Kill { run_too } => self.dies(run_too).await,
            Event::Wait(millis) => sleep(Duration::from_millis(millis)).await,
        }
        self.settles().await;
    }

    async fn dies(&mut self, run_too: bool) {
        let next = self.world.killed();
        self.kills += 1;
        let server = if run_too {
            self.with_server.clear();
            next.serves().await
        } else {
            next.finds(&self.server, &[]).await
        };
        self.stdio_client.moves_to(&next).await;
        (self.world, self.server) = (next, server);
    }

    /// Whatever can happen now does.
    async fn settles(&mut self) {
        sleep(Duration::from_millis(1)).await;
        while let Some(line) = self.server.reads_if_any() {
            if let Some(key) = line["params"]["key"].as_u64() {
                *self.executions.entry(key).or_default() += 1;
                self.with_server.push(line);
            }
        }
        for answer in self.stdio_client.reads_all().await {
            let id = answer["id"].as_u64().expect("only answers are written");
            let told = text(&answer);
            assert!(told == id.to_string() || told.starts_with("failed: "), "{id}: {told}");
            assert!(self.open.remove(&id), "{id} was answered twice, or by nobody");
        }
    }

    async fn ends(mut self) {
        for _ in 0..10 {
            self.settles().await;
            while !self.with_server.is_empty() {
                self.does(Event::Answer(0)).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
        assert!(self.open.is_empty(), "{:?} were never answered", self.open);
        for (id, count) in &self.executions {
            let most = if self.calls[id] { 2 + self.kills } else { 1 };
            assert!(*count <= most, "{id} was executed {count} times");
        }
    }
}
