//! From the death of a container to the next answer, with Mainstay and with Docker alone.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::engine::{Engine, Wire};
use crate::load::{Endpoint, LoadError, Transport as _, start_time};
use crate::rig::{BenchError, Instance, free_address, kill};
use crate::stats::Percentiles;

/// How long one recovery may take.
const LIMIT: Duration = Duration::from_secs(60);
/// A server that is killed has been idle for this long.
const CALM: Duration = Duration::from_millis(300);
/// After so long Docker takes a container for stable, and starts it again without a longer delay.
const DOCKER_CALM: Duration = Duration::from_millis(10_500);
const RETRY: Duration = Duration::from_millis(1);

/// The time to the answer to a call that is made right after the kill, in the session of before.
pub(super) async fn with_mainstay(
    engine: &Engine,
    instance: &Instance,
    wire: Wire,
    kills: u32,
) -> Result<Percentiles, BenchError> {
    const NAME: &str = "victim";
    engine.add(instance, NAME, wire).await?;
    let endpoint = endpoint(&instance.url(NAME))?;
    let mut session = endpoint.open().await.map_err(LoadError::Open)?;
    let mut times = Vec::new();
    for number in 1..=kills {
        let pid = engine.ready_pid(instance, NAME).await?;
        sleep(CALM).await;
        let killed = end(pid).await?;
        let answer = timeout(LIMIT, endpoint.call(&mut session, echo(number))).await;
        let answer = answer.map_err(|_| late("an answer"))?.map_err(LoadError::Open)?;
        times.push(killed.elapsed());
        check(&answer, number)?;
    }
    endpoint.close(session).await;
    Ok(Percentiles::of(times))
}

/// The time to the answer to a new `initialize`, of a plain container that Docker itself restarts. The
/// session of before must be lost.
pub(super) async fn with_docker(engine: &Engine, kills: u32) -> Result<Percentiles, BenchError> {
    let address = free_address().map_err(BenchError::SetUp)?;
    let publish = format!("{address}:{}", Wire::PORT);
    let run = ["run", "--detach", "--restart", "always", "--publish", &publish];
    let id = engine.container(&run, Wire::Http.flags()).await?;
    let endpoint = endpoint(&format!("http://{address}/mcp"))?;
    let mut times = Vec::new();
    for number in 1..=kills {
        let mut before = first_answer(&endpoint).await?;
        sleep(DOCKER_CALM).await;
        let pid = engine.pid(&id).await?;
        let killed = end(pid).await?;
        let after = first_answer(&endpoint).await?;
        times.push(killed.elapsed());
        if endpoint.call(&mut before, echo(number)).await.is_ok() {
            return Err(BenchError::Wrong("the session was not lost".to_owned()));
        }
        endpoint.close(after).await;
    }
    engine.docker(&["rm", "--force", &id]).await?;
    Ok(Percentiles::of(times))
}

/// From `docker start` to the answer to `initialize`, without Mainstay.
pub(super) async fn server_alone(
    engine: &Engine,
    wire: Wire,
    times: u32,
) -> Result<Percentiles, BenchError> {
    let address = free_address().map_err(BenchError::SetUp)?;
    let publish = format!("{address}:{}", Wire::PORT);
    let create: &[&str] = match wire {
        Wire::Stdio => &["create", "--interactive"],
        Wire::Http => &["create", "--publish", &publish],
    };
    let id = engine.container(create, wire.flags()).await?;
    let endpoint = endpoint(&format!("http://{address}/mcp"))?;
    let mut measured = Vec::new();
    for _ in 0..times {
        measured.push(match wire {
            Wire::Stdio => {
                let words = ["start", "--attach", "--interactive", &id].map(str::to_owned);
                let docker = ["docker".to_owned()];
                start_time(&[&docker[..], &engine.prefix(), &words].concat()).await?
            }
            Wire::Http => {
                let begun = Instant::now();
                engine.docker(&["start", &id]).await?;
                let session = first_answer(&endpoint).await?;
                let answered = begun.elapsed();
                endpoint.close(session).await;
                answered
            }
        });
        engine.docker(&["stop", &id]).await?;
    }
    engine.docker(&["rm", "--force", &id]).await?;
    Ok(Percentiles::of(measured))
}

/// Kills the first process of a container, and returns the time of that when the server in it is dead too:
/// it lives on for a moment, in which it would still answer.
pub(crate) async fn end(pid: u32) -> Result<Instant, BenchError> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let server = children.map_err(BenchError::SetUp)?;
    let killed = Instant::now();
    kill(pid);
    let dies = async {
        while server.split_whitespace().any(is_alive) {
            sleep(RETRY).await;
        }
    };
    timeout(LIMIT, dies).await.map_err(|_| late("a death"))?;
    Ok(killed)
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Tries until there is a session.
async fn first_answer(
    endpoint: &Endpoint,
) -> Result<<Endpoint as crate::load::Transport>::Session, BenchError> {
    let tries = async {
        loop {
            match endpoint.open().await {
                Ok(session) => return session,
                Err(_) => sleep(RETRY).await,
            }
        }
    };
    timeout(LIMIT, tries).await.map_err(|_| late("a session"))
}

fn endpoint(url: &str) -> Result<Endpoint, BenchError> {
    let url = url.parse().map_err(|_| BenchError::Wrong(format!("`{url}` is no URL")))?;
    Ok(Endpoint::new(&url)?)
}

fn late(what: &str) -> BenchError {
    BenchError::Late { what: format!("{what} after a kill"), limit: LIMIT }
}

fn echo(number: u32) -> Vec<u8> {
    let arguments = json!({"text": number.to_string()});
    let params = json!({"name": "echo", "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        .to_string()
        .into_bytes()
}

fn check(answer: &[u8], number: u32) -> Result<(), BenchError> {
    let text = String::from_utf8_lossy(answer);
    let answer: Value = serde_json::from_slice(answer).map_err(|_| wrong(&text))?;
    let told = answer["result"]["content"][0]["text"].as_str();
    if told == Some(&number.to_string()) { Ok(()) } else { Err(wrong(&text)) }
}

fn wrong(text: &str) -> BenchError {
    BenchError::Wrong(text.to_owned())
}
