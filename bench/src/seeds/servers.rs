//! What happens to servers that are processes.

use std::fs;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::client::Answer;
use super::schedule::{check_schedule, delays};
use super::screen::{Seen, figure};
use super::stage::{LIMIT, POLL, Stage, check, end};
use crate::rig::{BenchError, Event, Server};

pub(super) const KILLED: &str = "a server is killed (kill -9)";
pub(super) const STABLE: &str = "... again, after a stable time";
pub(super) const CRASHES: &str = "a server crashes in a loop";
pub(super) const REFRESHED: &str = "a restart with --refresh always";

/// A server that is up most of the time. Were its second failure not a first one again, it would not be
/// back in time for any row.
pub(super) const STEADY: &str = "steady";
const STEADY_OPTIONS: [&str; 6] =
    ["--stable-after", "300ms", "--restart-initial", "1h", "--restart-cap", "1h"];

const LOOPER: &str = "looper";
const LOOPER_OPTIONS: [&str; 6] =
    ["--restart-max", "3", "--restart-initial", "100ms", "--restart-cap", "200ms"];
/// What these options mean: how long after each end the next run is started.
const SCHEDULE: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(200)];

const NOTED: &str = "noted";
const NOTED_OPTIONS: [&str; 4] = ["--client", "cursor", "--refresh", "always"];

pub(super) async fn killed(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let fixture = fixture(stage);
    stage.run(STEADY, &STEADY_OPTIONS, &[&fixture]).await?;
    let took = die_and_return(stage, STEADY).await?;
    Ok(Seen::new("the next run answers, no error", format!("back in {}", figure(took))))
}

pub(super) async fn stable(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    stage.until(STEADY, "a clean slate", |server| server.restarts == 0).await?;
    let took = die_and_return(stage, STEADY).await?;
    let restarts = stage.server(STEADY).await?.restarts;
    check(restarts == 1, || format!("{restarts} restarts are charged"))?;
    Ok(Seen::new("a first failure: no wait of 1 h", format!("back in {}", figure(took))))
}

/// The server starts to fail, is given up, and comes back when somebody asks for it.
pub(super) async fn crashes(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let broken = stage.instance.folder().join("broken");
    let script = format!("test -e '{}' && exit 3; exec '{}'", broken.display(), fixture(stage));
    stage.run(LOOPER, &LOOPER_OPTIONS, &["sh", "-c", &script]).await?;
    fs::write(&broken, "").map_err(BenchError::SetUp)?;
    end(stage.pid(LOOPER).await?).await?;
    let told = stage.client(LOOPER)?.call("echo", &json!({"text": "anybody?"})).await?;
    check_given_up(&told, &stage.server(LOOPER).await?)?;
    let delays = delays(&stage.events(LOOPER).await?);
    check_schedule(&delays, &SCHEDULE)?;
    fs::remove_file(&broken).map_err(BenchError::SetUp)?;
    stage.instance.mainstay(&["restart", LOOPER]).await?;
    stage.client(LOOPER)?.echo().await?;
    let delays: Vec<_> = delays.iter().map(|delay| delay.as_millis().to_string()).collect();
    let figure = format!("after {} ms", delays.join(", "));
    Ok(Seen::new("3 restarts, then inside a 200: why not", figure))
}

/// The entry in the client's file goes before the next run and comes back after it.
pub(super) async fn refreshed(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let before = stage.entries()?;
    let fixture = fixture(stage);
    stage.run(NOTED, &NOTED_OPTIONS, &[&fixture]).await?;
    let with = stage.entries()?;
    check(with != before, || "there is no entry to take out".to_owned())?;
    let begun = end(stage.pid(NOTED).await?).await?;
    stage.until_entries(&before).await?;
    let out = begun.elapsed();
    stage.until_entries(&with).await?;
    let back = begun.elapsed();
    stage.client(NOTED)?.echo().await?;
    until_in_order(stage).await?;
    let figure = format!("out {}, in {}", figure(out), figure(back));
    Ok(Seen::new("entry out, then in again: same bytes", figure))
}

/// Kills a server and calls it at once; returns how long after its death the next run has answered.
async fn die_and_return(stage: &mut Stage<'_>, name: &str) -> Result<Duration, BenchError> {
    let before = stage.server(name).await?;
    let begun = end(stage.pid(name).await?).await?;
    let told = stage.client(name)?.text("pid", &json!({})).await?;
    let took = begun.elapsed();
    let after = stage.server(name).await?;
    let right = after.pid.map(|pid| pid.to_string()) == Some(told) && after.pid != before.pid;
    let restarted = after.generation == before.generation + 1;
    check(right && restarted, || format!("it was {before:?} and is {after:?}"))?;
    Ok(took)
}

fn check_given_up(told: &Answer, server: &Server) -> Result<(), BenchError> {
    let why = told.texts.join(" ");
    check(told.is_error && why.contains("exited 3"), || format!("the client was told: {why}"))?;
    let reason = server.reason.as_deref().unwrap_or_default();
    let given_up = server.status == "error" && server.restarts == 3;
    check(given_up && reason.contains("exited 3"), || format!("it is {server:?}"))
}

/// A change of a file is recorded shortly after it is made.
async fn until_in_order(stage: &Stage<'_>) -> Result<(), BenchError> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let events = stage.events(NOTED).await?;
        let order: Vec<_> = events.iter().filter_map(step).collect();
        if order.ends_with(&["removed", "started", "ready", "added"]) {
            return Ok(());
        }
        check(Instant::now() < deadline, || format!("in order: {order:?}"))?;
        sleep(POLL).await;
    }
}

/// What an event says about entries and runs.
fn step(event: &Event) -> Option<&str> {
    match (event.kind.as_str(), event.cause.as_deref()) {
        ("client", Some(cause)) => Some(cause),
        (kind @ ("started" | "ready"), _) => Some(kind),
        _ => None,
    }
}

fn fixture(stage: &Stage<'_>) -> String {
    stage.instance.fixture().to_string_lossy().into_owned()
}
