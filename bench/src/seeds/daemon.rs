//! What happens to the daemon itself.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::client::Client;
use super::screen::{Seen, figure};
use super::servers::STEADY;
use super::stage::{LIMIT, Stage, check, end, until_exists};
use crate::rig::{BenchError, Instance, output};

pub(super) const KILLED: &str = "the daemon is killed (kill -9)";
pub(super) const IN_FLIGHT: &str = "... while a slow call writes";
pub(super) const RELOADED: &str = "mainstay daemon reload";
pub(super) const UPDATED: &str = "mainstay update --from NEWER";
pub(super) const LATE: &str = "the daemon is away for 300 ms";
pub(super) const STOPPED: &str = "mainstay daemon stop during a call";

/// How long the slow calls take, and how long they are in flight when something happens to the daemon:
/// longer than the 150 ms after which they are on an event stream.
const SLOW_MS: u64 = 1500;
const IN_FLIGHT_FOR: Duration = Duration::from_millis(500);
/// In an optimized program a version may be cut up into machine words; this much of it stays together.
const WORD: usize = 4;
const AWAY: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(1);

pub(super) async fn killed(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let (daemon, server) = (stage.instance.daemon_pid().await?, stage.pid(STEADY).await?);
    let begun = end(daemon).await?;
    stage.client(STEADY)?.echo().await?;
    let took = begun.elapsed();
    check_replaced(stage, daemon, server).await?;
    let refused = stage.client(STEADY)?.refused();
    check(refused == 0, || format!("{refused} connections were refused"))?;
    Ok(Seen::new("the next one answers; same server pid", format!("after {}", figure(took))))
}

/// The call is committed to an event stream, which its client takes up again.
pub(super) async fn in_flight(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let (daemon, server) = (stage.instance.daemon_pid().await?, stage.pid(STEADY).await?);
    let effect = stage.instance.folder().join("written");
    let write = write_slowly(stage.client(STEADY)?, &effect);
    let death = async {
        until_exists(&effect).await?;
        sleep(IN_FLIGHT_FOR).await;
        end(daemon).await
    };
    let begun = Instant::now();
    let (answered, killed) = tokio::try_join!(write, death)?;
    check(killed < answered, || "the answer came before the end of the daemon".to_owned())?;
    let took = (answered - begun).as_millis();
    check_replaced(stage, daemon, server).await?;
    let figure = format!("{SLOW_MS} ms took {took} ms");
    Ok(Seen::new("answered on its stream, executed once", figure))
}

pub(super) async fn reloaded(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let Replaced { saw, longest } = replaced(stage, &["daemon", "reload"]).await?;
    Ok(Seen::new(saw, format!("longest call {}", figure(longest))))
}

pub(super) async fn updated(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let old = stage.instance.daemon().await?.version;
    let (file, new) = newer_program(stage.bin, &old)?;
    let command = ["update", "--from", &file.to_string_lossy()];
    let Replaced { saw, longest } = replaced(stage, &command).await?;
    let now = stage.instance.daemon().await?.version;
    check(now == new, || format!("the daemon is version {now}, not {new}"))?;
    Ok(Seen::new(saw, format!("{new}, longest {}", figure(longest))))
}

/// A command comes while no daemon is there, and may not start one itself.
pub(super) async fn late(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let instance = stage.instance;
    let server = stage.pid(STEADY).await?;
    let count: u64 = number(&stage.client(STEADY)?.text("count", &json!({})).await?)?;
    instance.mainstay(&["daemon", "stop", "--keep-servers"]).await?;
    let mut command = instance.command(&["call", STEADY, "count", "{}"]);
    command.env("MAINSTAY_NO_START", "1");
    let begun = Instant::now();
    let call = async {
        let told = output(&mut command, LIMIT).await?;
        Ok::<_, BenchError>((begun.elapsed(), told))
    };
    let comes = async {
        sleep(AWAY).await;
        instance.mainstay(&["daemon", "start"]).await
    };
    let ((took, told), _) = tokio::try_join!(call, comes)?;
    let (said, complaint) = (text(&told.stdout), text(&told.stderr));
    check(took >= AWAY, || "the daemon was not away".to_owned())?;
    let right = told.status.success() && number(&said)? == count + 1;
    check(right, || format!("after {count} it said `{said}` and `{complaint}`"))?;
    check(stage.pid(STEADY).await? == server, || "the server was restarted".to_owned())?;
    stage.client(STEADY)?.echo().await?;
    Ok(Seen::new("a command waits for it, and is answered", format!("after {}", figure(took))))
}

/// Nobody is let in who would not be served; who is in is served.
pub(super) async fn stopped(stage: &mut Stage<'_>) -> Result<Seen, BenchError> {
    let instance = stage.instance;
    let effect = instance.folder().join("written-last");
    let write = write_slowly(stage.client(STEADY)?, &effect);
    let stop = async {
        until_exists(&effect).await?;
        sleep(IN_FLIGHT_FOR).await;
        let begun = Instant::now();
        let stop = instance.mainstay(&["daemon", "stop"]);
        let (_, refused) = tokio::try_join!(stop, until_refused(instance.address()))?;
        Ok::<_, BenchError>((begun, refused))
    };
    let (answered, (begun, refused)) = tokio::try_join!(write, stop)?;
    check(refused < answered, || "the answer came before the first refusal".to_owned())?;
    instance.mainstay(&["daemon", "start"]).await?;
    stage.client(STEADY)?.echo().await?;
    let (refused, answered) = (refused - begun, answered - begun);
    let figure = format!("{}, then {}", figure(refused), figure(answered));
    Ok(Seen::new("new connects refused; the call answered", figure))
}

/// What was seen while the daemon was replaced.
struct Replaced {
    saw: String,
    /// The longest that a call took.
    longest: Duration,
}

/// Has the daemon replaced while its client calls and others connect.
async fn replaced(stage: &mut Stage<'_>, command: &[&str]) -> Result<Replaced, BenchError> {
    let instance: &Instance = stage.instance;
    let (daemon, server) = (instance.daemon_pid().await?, stage.pid(STEADY).await?);
    let client = stage.client(STEADY)?;
    let before = client.refused();
    let deed = connects_during(instance.address(), instance.mainstay(command));
    let (connects, calls) = client.calls_during(deed).await?;
    let refused = client.refused() - before;
    check(refused == 0, || format!("{refused} of {} calls were refused", calls.count))?;
    check_replaced(stage, daemon, server).await?;
    let saw = format!("{} connects meanwhile, 0 refused", connects + calls.count);
    Ok(Replaced { saw, longest: calls.longest })
}

/// Connects again and again while something is done; none may fail. Returns how many there were.
async fn connects_during<T>(
    address: SocketAddr,
    deed: impl Future<Output = Result<T, BenchError>>,
) -> Result<u32, BenchError> {
    let mut deed = pin!(deed);
    let mut count = 0;
    loop {
        tokio::select! {
            done = &mut deed => return done.map(|_| count),
            () = sleep(POLL) => {
                drop(TcpStream::connect(address).await.map_err(|error| refused(&error))?);
                count += 1;
            }
        }
    }
}

fn refused(error: &io::Error) -> BenchError {
    BenchError::Wrong(format!("a connection was refused: {error}"))
}

/// Another daemon serves, and the server is the one it was.
async fn check_replaced(stage: &Stage<'_>, daemon: u32, server: u32) -> Result<(), BenchError> {
    let now = stage.instance.daemon_pid().await?;
    check(now != daemon, || "the daemon is the old one".to_owned())?;
    let now = stage.pid(STEADY).await?;
    check(now == server, || format!("the server was {server} and is {now}"))
}

async fn until_refused(address: SocketAddr) -> Result<Instant, BenchError> {
    let tries = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(_) => sleep(POLL).await,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    return Ok(Instant::now());
                }
                Err(error) => return Err(BenchError::SetUp(error)),
            }
        }
    };
    let late = |_| BenchError::Late { what: "a refusal".to_owned(), limit: LIMIT };
    timeout(LIMIT, tries).await.map_err(late)?
}

/// The installed program as if it were of a later version: the same program but for these bytes.
pub(crate) fn newer_program(bin: &Path, old: &str) -> Result<(PathBuf, String), BenchError> {
    let (word, rest) = old.split_at_checked(WORD).unwrap_or((old, ""));
    let later = word.replace(|c: char| c.is_ascii_digit(), "9");
    let new = format!("{later}{rest}");
    let file = bin.join("newer");
    let program = fs::read(bin.join("mainstay")).map_err(BenchError::SetUp)?;
    let patched = patch(program, word.as_bytes(), later.as_bytes());
    fs::write(&file, patched).map_err(BenchError::SetUp)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).map_err(BenchError::SetUp)?;
    Ok((file, new))
}

/// Puts other words of the same length in the place of these, wherever they are.
fn patch(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + from.len()].copy_from_slice(to);
        }
        at += 1;
    }
    bytes
}

/// A slow call that must not be executed twice; returns when it was answered.
async fn write_slowly(client: &mut Client, file: &Path) -> Result<Instant, BenchError> {
    let arguments = json!({"path": file, "line": "once", "ms": SLOW_MS});
    let told = client.text("append", &arguments).await?;
    let answered = Instant::now();
    let lines = fs::read_to_string(file).map_err(BenchError::SetUp)?;
    check(told == "appended" && lines == "once\n", || format!("`{told}`, and did `{lines}`"))?;
    Ok(answered)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn number(text: &str) -> Result<u64, BenchError> {
    text.parse().map_err(|_| BenchError::Wrong(format!("`{text}` is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mention_is_patched() {
        assert_eq!(patch(b"v0.1.0 0.1.00.1.0".to_vec(), b"0.1.0", b"9.9.9"), b"v9.9.9 9.9.99.9.9");
        assert_eq!(patch(b"0.1".to_vec(), b"0.1.0", b"9.9.9"), b"0.1");
    }
}
