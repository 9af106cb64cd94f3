//! What happens to servers in containers, and to their engine.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::client::Calls;
use super::schedule::{check_schedule, delays};
use super::screen::{Seen, figure};
use super::stage::{LIMIT, POLL, Stage, check};
use crate::docker::{Engine, IMAGE, end_container};
use crate::restarts::Fall;
use crate::rig::{BenchError, Server};

pub(super) const KILLED: &str = "a container is killed (kill -9)";
pub(super) const STOPPED: &str = "docker stop";
pub(super) const RESTARTED: &str = "docker restart";
pub(super) const OUTAGE: &str = "the engine is killed and started";
pub(super) const REMOVED: &str = "docker rm --force";

const BOXED: &str = "boxed";
const BOXED_OPTIONS: [&str; 6] =
    ["--image", IMAGE, "--restart-initial", "200ms", "--restart-cap", "200ms"];

/// What these options mean for the first two rows.
const SCHEDULE: [Duration; 2] = [Duration::ZERO, Duration::from_millis(200)];

const DOOMED: &str = "doomed";
const DOOMED_OPTIONS: [&str; 4] = ["--image", IMAGE, "--client", "cursor"];

pub(super) async fn killed(stage: &mut Stage<'_>, engine: &Engine) -> Result<Seen, BenchError> {
    stage.run(BOXED, &BOXED_OPTIONS, &[]).await?;
    let container = container(&stage.server(BOXED).await?)?;
    let begun = end_container(engine.pid(&container).await?).await?;
    stage.client(BOXED)?.echo().await?;
    let took = begun.elapsed();
    let after = stage.server(BOXED).await?;
    let right = (after.generation, after.restarts) == (2, 1);
    check(right && after.container_id == Some(container), || format!("it is {after:?}"))?;
    Ok(Seen::new("the next run answers, no error", format!("back in {}", figure(took))))
}

pub(super) async fn stopped(stage: &mut Stage<'_>, engine: &Engine) -> Result<Seen, BenchError> {
    let (charged, calls) = by_hand(stage, engine, "stop", "stopped").await?;
    check(charged == 1, || format!("{charged} restarts were charged"))?;
    check_schedule(&delays(&stage.events(BOXED).await?), &SCHEDULE)?;
    let why = stage.instance.mainstay(&["why", BOXED]).await?;
    let why = String::from_utf8_lossy(&why);
    check(why.contains("stopped by someone else"), || format!("`why` says: {why}"))?;
    let figure = format!("back in {}", figure(calls.longest));
    Ok(Seen::new("restarted by schedule; `why` says who", figure))
}

pub(super) async fn restarted(stage: &mut Stage<'_>, engine: &Engine) -> Result<Seen, BenchError> {
    let (charged, calls) = by_hand(stage, engine, "restart", "restarted").await?;
    check(charged == 0, || format!("{charged} restarts were charged"))?;
    Ok(Seen::new("adopted, not charged", format!("back in {}", figure(calls.longest))))
}

/// The containers die with their engine, and nobody is blamed. An outage also gives back what was charged
/// just before it, which would hide a charge of its own; so the server begins with none.
pub(super) async fn outage(stage: &mut Stage<'_>, engine: &Engine) -> Result<Seen, BenchError> {
    stage.instance.mainstay(&["restart", BOXED]).await?;
    let fresh = |server: &Server| server.is_ready() && server.restarts == 0;
    let before = stage.until(BOXED, "a clean slate", fresh).await?;
    engine.kill().await?;
    stage.until(BOXED, "the outage", |server| server.status == "waiting").await?;
    let begun = Instant::now();
    let held = async {
        stage.client(BOXED)?.echo().await?;
        Ok::<_, BenchError>(begun.elapsed())
    };
    let (held, ()) = tokio::try_join!(held, engine.start())?;
    let after = until_known(stage, "engine-away").await?;
    check(after.restarts == 0, || format!("it was {before:?} and is {after:?}"))?;
    check(after.container_id == before.container_id, || format!("it is {after:?}"))?;
    Ok(Seen::new("its call is held, nothing is charged", format!("held {}", figure(held))))
}

pub(super) async fn removed(stage: &mut Stage<'_>, engine: &Engine) -> Result<Seen, BenchError> {
    let before = stage.entries()?;
    stage.run(DOOMED, &DOOMED_OPTIONS, &[]).await?;
    check(stage.entries()? != before, || "there is no entry to take out".to_owned())?;
    let container = container(&stage.server(DOOMED).await?)?;
    let begun = Instant::now();
    engine.docker(&["rm", "--force", &container]).await?;
    stage.until_entries(&before).await?;
    until_unlisted(stage).await?;
    let took = begun.elapsed();
    let mut client = stage.take_client(DOOMED).expect("`run` has opened a session");
    let answer = client.ask("echo", &json!({"text": "anybody?"})).await;
    let gone = matches!(answer, Err(Fall::Status(StatusCode::NOT_FOUND)));
    check(gone, || format!("the endpoint answers {answer:?}"))?;
    Ok(Seen::new("404; gone from ls and from mcp.json", format!("after {}", figure(took))))
}

async fn until_unlisted(stage: &Stage<'_>) -> Result<(), BenchError> {
    let deadline = Instant::now() + LIMIT;
    while let Some(server) = stage.find(DOOMED).await? {
        check(Instant::now() < deadline, || format!("it is still there: {server:?}"))?;
        sleep(POLL).await;
    }
    Ok(())
}

/// Somebody uses `docker` on the container while its client calls. Returns how many restarts that cost.
async fn by_hand(
    stage: &mut Stage<'_>,
    engine: &Engine,
    verb: &str,
    cause: &str,
) -> Result<(u32, Calls), BenchError> {
    let before = stage.server(BOXED).await?;
    let words = [verb, &container(&before)?];
    let (_, calls) = stage.client(BOXED)?.calls_during(engine.docker(&words)).await?;
    let after = until_known(stage, cause).await?;
    check(after.generation == before.generation + 1, || format!("it is {after:?}"))?;
    Ok((after.restarts.saturating_sub(before.restarts), calls))
}

/// Waits until it is known how the last run ended; that may be told after the next one is ready.
async fn until_known(stage: &Stage<'_>, cause: &str) -> Result<Server, BenchError> {
    let known = |server: &Server| {
        server.is_ready() && server.last_exit.as_ref().is_some_and(|exit| exit.cause == cause)
    };
    stage.until(BOXED, &format!("the cause `{cause}`"), known).await
}

fn container(server: &Server) -> Result<String, BenchError> {
    let untold = || BenchError::Untold { server: server.name.clone(), what: "container" };
    server.container_id.clone().ok_or_else(untold)
}
