//! The replay contract, whatever goes wrong.
//!
//! Several sessions make requests of one stdio server whose runs die at every step, come back soon,
//! late or never, answer twice or to nobody; clients give requests up. Sessions use the same ids and
//! tokens. Every request bears a key of its own, by which executions and answers are counted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_proxy::Availability;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::client::{Asked, text};
use super::server::tool_result;
use super::{Client, Server, World};

const SESSIONS: usize = 3;

/// What a client does.
#[derive(Debug, Clone, Copy)]
enum Event {
    Ask(usize, Plea),
    /// Gives up the request of that number, if it is open.
    Cancel(usize),
    Drop(usize),
    Wait(u64),
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plea {
    Read,
    Prompt,
    Safe,
    Unsafe,
}

/// What a server does with a request.
#[derive(Debug, Clone, Copy)]
enum Act {
    Answer,
    AnswerTwice,
    /// Answers somebody else first.
    Stray,
    Progress,
    /// Answers after so many milliseconds, if it still lives.
    Slow(u64),
    Refuse,
    /// The rest are deaths.
    DieUnwritten,
    DieWritten,
    DieExecuted,
    DieMidAnswer,
}

/// One run.
#[derive(Debug, Clone)]
struct Life {
    acts: Vec<Act>,
    /// How many milliseconds pass until its death is known.
    lag: u64,
    until_next: Gap,
}

/// What follows a run.
#[derive(Debug, Clone, Copy)]
enum Gap {
    /// The next run, after so many milliseconds.
    After(u64),
    /// A start that is not due before so many milliseconds.
    Due(u64),
    /// Nothing, for so many milliseconds.
    Down(u64),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn the_contract_holds(
        events in prop::collection::vec(event(), 1..40),
        lives in prop::collection::vec(life(), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(scene(events, lives));
    }
}

/// What became of the requests, by their keys.
#[derive(Debug, Default)]
struct Ledger {
    seen: Mutex<HashMap<u64, u32>>,
    executed: Mutex<HashMap<u64, u32>>,
}

impl Ledger {
    fn count(counts: &Mutex<HashMap<u64, u32>>, key: u64) -> u32 {
        counts.lock().unwrap().get(&key).copied().unwrap_or_default()
    }

    fn note(counts: &Mutex<HashMap<u64, u32>>, key: u64) {
        *counts.lock().unwrap().entry(key).or_default() += 1;
    }
}

/// A request that was made.
struct Made {
    key: u64,
    session: usize,
    plea: Plea,
    asked: Asked,
}

async fn scene(events: Vec<Event>, lives: Vec<Life>) {
    let world = Arc::new(World::new());
    let ledger = Arc::<Ledger>::default();
    // A first, quiet run, so that all clients can be welcomed.
    let first = world.serves().await;
    let clients = [world.client().await, world.client().await, world.client().await];
    drop(first);
    let mut supervisor = JoinSet::new();
    supervisor.spawn(supervise(Arc::clone(&world), Arc::clone(&ledger), lives));

    let mut open: Vec<Made> = Vec::new();
    let mut unseen = Vec::new();
    for (key, event) in (1..).zip(events) {
        match event {
            Event::Ask(session, plea) => {
                let asked = ask(&clients[session], plea, key);
                open.push(Made { key, session, plea, asked });
            }
            Event::Cancel(number) | Event::Drop(number) if number < open.len() => {
                let made = open.remove(number);
                if Ledger::count(&ledger.seen, made.key) == 0 && !made.asked.is_answered() {
                    unseen.push(made.key);
                }
                if matches!(event, Event::Cancel(_)) && !made.asked.is_answered() {
                    clients[made.session].cancels(&made.asked);
                    assert!(made.asked.ends_unanswered().await, "a cancelled request was answered");
                }
            }
            Event::Cancel(_) | Event::Drop(_) => {}
            Event::Wait(millis) => sleep(Duration::from_millis(millis)).await,
        }
        // Whatever can happen now does.
        sleep(Duration::from_millis(1)).await;
    }
    for made in open {
        settled(made, &ledger).await;
    }
    for key in unseen {
        assert_eq!(Ledger::count(&ledger.executed, key), 0, "{key} was given up before");
    }
    for client in &clients {
        assert!(client.hears_nothing().await);
    }
}

/// Waits for the answer, and checks whose it is and what it cost.
async fn settled(made: Made, ledger: &Ledger) {
    let Made { key, session, plea, mut asked } = made;
    let limit = Duration::from_secs(600);
    let whole = async {
        while let Some(told) = asked.hears_before_answer().await {
            let expected =
                json!({"progressToken": "t", "progress": 1.0, "message": key.to_string()});
            assert_eq!(told["params"], expected, "progress of another request");
        }
        asked.answer().await
    };
    let answer = tokio::time::timeout(limit, whole).await.expect("every request is answered");
    let executed = Ledger::count(&ledger.executed, key);
    let is_ours = answer.to_string().contains("`time`");
    if !is_ours && answer["error"].is_null() {
        let told = match plea {
            Plea::Safe | Plea::Unsafe => text(&answer),
            Plea::Read | Plea::Prompt => answer["result"]["key"].as_str().unwrap().to_owned(),
        };
        assert_eq!(told, key.to_string(), "session {session} got the answer of another request");
        assert!(executed > 0);
    }
    let most = if plea == Plea::Unsafe { 1 } else { 2 };
    assert!(executed <= most, "{plea:?} was executed {executed} times");
}

fn ask(client: &Client, plea: Plea, key: u64) -> Asked {
    let meta = json!({"progressToken": "t"});
    let key = key.to_string();
    match plea {
        Plea::Read => client.asks("resources/read", &json!({"uri": "x:", "key": key})),
        Plea::Prompt => client.asks("prompts/get", &json!({"_meta": meta, "key": key})),
        Plea::Safe => {
            client.asks("tools/call", &json!({"name": "peek", "_meta": meta, "key": key}))
        }
        Plea::Unsafe => {
            client.asks("tools/call", &json!({"name": "poke", "_meta": meta, "key": key}))
        }
    }
}

/// One run after the other; the last stays.
async fn supervise(world: Arc<World>, ledger: Arc<Ledger>, lives: Vec<Life>) {
    let soon = |millis: u64| Duration::from_millis(millis);
    for life in lives {
        let server = world.serves().await;
        live(server, life.acts, &ledger).await;
        sleep(soon(life.lag)).await;
        match life.until_next {
            Gap::After(millis) => {
                world.is_coming(None);
                sleep(soon(millis)).await;
            }
            Gap::Due(millis) => {
                world.is_coming(Some(soon(millis)));
                sleep(soon(millis)).await;
            }
            Gap::Down(millis) => {
                world.is_down();
                sleep(soon(millis)).await;
            }
        }
    }
    let server = world.serves().await;
    live(server, Vec::new(), &ledger).await;
    world.proxy.set_availability(Availability::Removed);
}

/// Does one thing with each request, and answers the rest.
async fn live(mut server: Server, acts: Vec<Act>, ledger: &Arc<Ledger>) {
    let mut acts = acts.into_iter();
    let mut slow = JoinSet::new();
    loop {
        let request = server.takes_in_time().await;
        let Some(key) = request["params"]["key"].as_str().and_then(|key| key.parse().ok()) else {
            server.confirms();
            continue;
        };
        let act = acts.next().unwrap_or(Act::Answer);
        Ledger::note(&ledger.seen, key);
        if matches!(act, Act::DieUnwritten) {
            return;
        }
        server.confirms();
        if matches!(act, Act::DieWritten) {
            return;
        }
        let answer = answer_to(&request);
        if !matches!(act, Act::Slow(_) | Act::Refuse) {
            Ledger::note(&ledger.executed, key);
        }
        match act {
            Act::Answer => server.writes(&answer).await,
            Act::AnswerTwice => {
                server.writes(&answer).await;
                server.writes(&answer).await;
            }
            Act::Stray => {
                let other = request["id"].as_u64().unwrap() + 1000;
                server.says(&json!({"id": other, "result": {"key": "0"}})).await;
                server.writes(&answer).await;
            }
            Act::Progress => {
                let token = &request["params"]["_meta"]["progressToken"];
                let params =
                    json!({"progressToken": token, "progress": 1.0, "message": key.to_string()});
                server.says(&json!({"method": "notifications/progress", "params": params})).await;
                server.writes(&answer).await;
            }
            Act::Slow(millis) => {
                let (stdout, ledger) = (server.stdout.clone().downgrade(), Arc::clone(ledger));
                slow.spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    Ledger::note(&ledger.executed, key);
                    if let Some(stdout) = stdout.upgrade() {
                        stdout.send(answer.into()).await.ok();
                    }
                });
            }
            Act::Refuse => {
                let error = json!({"code": -32000, "message": "no"});
                server.says(&json!({"id": request["id"], "error": error})).await;
            }
            Act::DieMidAnswer => {
                server.writes(&answer[..answer.len() / 2]).await;
                return;
            }
            Act::DieExecuted => return,
            Act::DieUnwritten | Act::DieWritten => unreachable!("it has died above"),
        }
    }
}

fn answer_to(request: &Value) -> String {
    let key = request["params"]["key"].as_str().unwrap();
    let result =
        if request["method"] == "tools/call" { tool_result(key) } else { json!({"key": key}) };
    json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string()
}

fn event() -> impl Strategy<Value = Event> {
    let plea = prop_oneof![
        1 => Just(Plea::Read),
        1 => Just(Plea::Prompt),
        2 => Just(Plea::Safe),
        3 => Just(Plea::Unsafe),
    ];
    prop_oneof![
        8 => (0..SESSIONS, plea).prop_map(|(session, plea)| Event::Ask(session, plea)),
        1 => (0..6_usize).prop_map(Event::Cancel),
        1 => (0..6_usize).prop_map(Event::Drop),
        2 => millis().prop_map(Event::Wait),
    ]
}

fn life() -> impl Strategy<Value = Life> {
    let gap = prop_oneof![
        4 => millis().prop_map(Gap::After),
        2 => millis().prop_map(Gap::Due),
        1 => millis().prop_map(Gap::Down),
    ];
    let acts = prop::collection::vec(act(), 0..12);
    (acts, death(), 0..100_u64, gap).prop_map(|(mut acts, death, lag, until_next)| {
        acts.push(death);
        Life { acts, lag, until_next }
    })
}

/// From the next moment to beyond every hold.
fn millis() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..100_u64, 2 => 100..10_000_u64, 1 => 10_000..70_000_u64]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => Just(Act::Answer),
        1 => Just(Act::AnswerTwice),
        1 => Just(Act::Stray),
        2 => Just(Act::Progress),
        3 => (1..500_u64).prop_map(Act::Slow),
        1 => Just(Act::Refuse),
    ]
}

fn death() -> impl Strategy<Value = Act> {
    prop_oneof![
        Just(Act::DieUnwritten),
        Just(Act::DieWritten),
        Just(Act::DieExecuted),
        Just(Act::DieMidAnswer),
    ]
}
