//! The client's `initialize`.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout_at};

use super::availability::{Availability, Run, RunLink};
use super::call::Verdict;
use super::event_sink::Decision;
use super::exchange::refusal;
use super::lists::PATIENCE;
use super::messages;
use super::progress::Progress;
use super::session::Session;
use crate::frame::{self, InitializeParams, InitializeResult, Parsed, result_for_client};
use crate::front::ProtocolVersion;
use crate::stream::Stream;

/// A run that could not be reached is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// The minimum time to wait for a server that has never been ready: its first start may download packages.
const FIRST_START: Duration = Duration::from_secs(60);

/// How often the server's last line is read for a client that asked for progress.
const LOOK: Duration = Duration::from_secs(1);

/// Progress is repeated after this many looks without a new line, so that the client sees that the wait goes on.
const REPEAT: u32 = 5;

/// Answers with what the server says of itself: now, or what it said last.
/// Nothing if the client gave it up.
pub(super) async fn answer(
    session: &Session,
    message: &Parsed,
    out: &Arc<Stream>,
) -> Option<Bytes> {
    let id = message.id()?;
    let params = message.params().and_then(|params| {
        let version = InitializeParams::read(params)?.protocol_version.into_owned();
        let raw = RawValue::from_string(str::from_utf8(params).ok()?.to_owned()).ok()?;
        Some((version, Arc::<RawValue>::from(raw)))
    });
    let Some((version, params)) = params else {
        let what = "`initialize` needs a protocolVersion";
        return Some(frame::error(id, frame::INVALID_PARAMS, what));
    };
    if !session.is_local() {
        session.propose(&params);
        session.hub().isolate(session);
    }
    // A token that cannot be read is the same as none.
    let progress = Progress::of(message, out).ok().flatten();
    let welcome = tokio::select! {
        welcome = welcome(session, &params) => welcome,
        () = out.closed() => return None,
        never = report(session, progress, out) => match never {},
    };
    let refused = |cause: &'static str, why: &str| {
        let first_line = why.lines().next().unwrap_or_default();
        session.hub().record_decision(Decision::about(session, message, cause, first_line, None));
        Some(refusal(id, cause, why))
    };
    match welcome {
        Ok(Welcome { result, generation }) => {
            let version = agreed(&version, &result);
            let Some(told) = result_for_client(result.get().as_bytes(), version.as_str()) else {
                return refused("bad-answer", "the server's answer makes no sense");
            };
            session.begin(params, version, generation);
            session.written().await;
            Some(frame::result_text(id, &told))
        }
        Err((verdict, why)) => refused(messages::cause(verdict), &why),
    }
}

/// What a client is welcomed with.
struct Welcome {
    result: Arc<RawValue>,
    /// The run that said so; 0 if it is none of the present.
    generation: u64,
}

async fn welcome(session: &Session, params: &Arc<RawValue>) -> Result<Welcome, (Verdict, String)> {
    let hub = session.hub();
    // A run that is up but silent is given up earlier if there is a copy to answer with.
    let patience = match hub.last_hello() {
        Some(_) => PATIENCE,
        None => first_wait(hub.settings().hold),
    };
    let until = Instant::now() + patience;
    let mut availability = session.availability();
    loop {
        let present = availability.borrow_and_update().clone();
        if let Availability::Up(run) = &present
            && let Ok(Some(result)) = timeout_at(until, greet(session, run, params)).await
        {
            return Ok(Welcome { result, generation: run.generation });
        }
        if let Some(result) = hub.last_hello()
            && !matches!(present, Availability::Removed)
        {
            return Ok(Welcome { result, generation: 0 });
        }
        let verdict = match &present {
            Availability::Coming { due: Some(due), .. } if *due > until.into_std() => {
                Some(Verdict::Down)
            }
            Availability::Up(_) | Availability::Coming { .. } => None,
            Availability::Down { .. } => Some(Verdict::Down),
            Availability::Removed => Some(Verdict::Removed),
        };
        let late = match (&verdict, &present) {
            (Some(_), _) => true,
            // It is up, but could not be reached; most likely that is about to be told.
            (None, Availability::Up(_)) => {
                sleep(TRY_AGAIN).await;
                Instant::now() >= until
            }
            (None, _) => !matches!(timeout_at(until, availability.changed()).await, Ok(Ok(()))),
        };
        if late {
            let verdict = verdict.unwrap_or(Verdict::Late);
            let now = Instant::now().into_std();
            return Err((verdict, messages::verdict(hub.name(), verdict, &present, now, patience)));
        }
    }
}

/// How long a client waits for a server of which nothing is known yet.
fn first_wait(hold: Duration) -> Duration {
    hold.max(FIRST_START)
}

/// Tells a client that asked for progress what the server is doing, until this is dropped.
async fn report(session: &Session, progress: Option<Progress>, out: &Stream) -> Infallible {
    let Some(progress) = progress else { return pending().await };
    let hub = session.hub();
    let (mut told, mut looks) = (String::new(), 0);
    for count in 1_u32.. {
        sleep(LOOK).await;
        let line = hub.last_line().await;
        let text =
            messages::starting(hub.name(), line.as_deref(), &session.availability().borrow());
        looks += 1;
        if text != told || looks >= REPEAT {
            out.push(frame::progress(progress.token(), count, &text));
            (told, looks) = (text, 0);
        }
    }
    pending().await
}

/// A run that is shared was welcomed already, under our own name. With one that speaks HTTP, each
/// client has a session of its own.
async fn greet(session: &Session, run: &Arc<Run>, params: &Arc<RawValue>) -> Option<Arc<RawValue>> {
    match &run.link {
        RunLink::Lines(_) => Some(Arc::from(run.hello.result.clone())),
        RunLink::Http(http) => session.http().open(http, params).await.ok(),
    }
}

/// The version for this client: the one it wants if we speak it, but none that is newer than the
/// server's.
fn agreed(wanted: &str, result: &RawValue) -> ProtocolVersion {
    let newest = ProtocolVersion::V2025_11_25;
    let servers = InitializeResult::read(result.get().as_bytes());
    let servers = servers.and_then(|result| result.protocol_version.parse().ok());
    wanted.parse().unwrap_or(newest).min(servers.unwrap_or(newest))
}
