//! Continuous calls while the daemon is restarted or replaced.

use std::io::ErrorKind;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::env::until;
use crate::fake_daemon::Client;
use crate::proxy::client::text_of;
use crate::proxy::raw::{Raw, call, request};

/// How many answers each caller gets before anything happens, and again after it.
const WELL: u64 = 20;

/// How many calls it makes at most until then.
const CALLS: u64 = 20_000;

/// Makes one call after the other, in one session.
pub(super) trait Caller: Send {
    /// The answer, or none if the call was cut and may be so.
    fn ask(&mut self, request: &Value) -> Option<Value>;
}

/// A caller over HTTP whose calls must not be refused or cut.
impl Caller for &Raw {
    fn ask(&mut self, request: &Value) -> Option<Value> {
        Some(self.answered(request))
    }
}

/// A caller over HTTP that reconnects while nothing listens. Its calls may be cut before there is an event stream.
pub(super) struct Patient<'a>(pub(super) &'a Raw);

impl Caller for Patient<'_> {
    fn ask(&mut self, request: &Value) -> Option<Value> {
        until("a daemon listens", || {
            let error = match self.0.try_answered(request) {
                Ok(answer) => return Some(Some(answer)),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::ConnectionRefused => None,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof => {
                    Some(None)
                }
                _ => panic!("{error}"),
            }
        })
    }
}

/// A session through `mainstay connect`.
pub(super) struct Connected(Client);

impl Connected {
    pub(super) fn open(connect: Command) -> Self {
        let mut client = Self(Client::spawn(connect));
        let info = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info});
        let answer = client.answer(&request(0, "initialize", &params));
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        client.0.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        client
    }

    fn answer(&mut self, request: &Value) -> Value {
        self.0.say(&request.to_string());
        self.0.message()
    }

    /// Ends its input, after which it ends by itself.
    pub(super) fn end(self) {
        let (code, lines, stderr) = self.0.end();
        assert_eq!((code, lines), (Some(0), Vec::new()), "{stderr}");
    }
}

impl Caller for Connected {
    fn ask(&mut self, request: &Value) -> Option<Value> {
        Some(self.answer(request))
    }
}

/// The results of the calls of a server that counts them.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// What it answered.
    counted: Vec<u64>,
    /// How many calls were cut.
    cut: u64,
    last_id: u64,
}

impl Load {
    /// Lets all callers call before, during and after this. No answer may be an error.
    pub(super) fn through(&mut self, callers: &mut [&mut dyn Caller], happen: impl FnOnce()) {
        let first_id = self.last_id + 1;
        self.last_id += CALLS;
        let enough = AtomicBool::new(false);
        let answered: Vec<_> = callers.iter().map(|_| AtomicU64::new(0)).collect();
        let answers = || answered.iter().map(|count| count.load(Ordering::Relaxed));
        let well_answered = || {
            let goals: Vec<u64> = answers().map(|count| count + WELL).collect();
            until("everybody is answered", || {
                answers().zip(&goals).all(|(count, goal)| count >= *goal).then_some(())
            });
        };
        thread::scope(|scope| {
            let stop = Stop(&enough);
            let calling = callers.iter_mut().zip(&answered).map(|(caller, answered)| {
                let enough = &enough;
                scope.spawn(move || call_on(*caller, first_id, enough, answered))
            });
            let calling: Vec<_> = calling.collect();
            well_answered();
            happen();
            well_answered();
            drop(stop);
            for count in calling.into_iter().flat_map(|calls| calls.join().expect("all went well"))
            {
                match count {
                    Some(count) => self.counted.push(count),
                    None => self.cut += 1,
                }
            }
        });
    }

    /// Asserts that at most so many calls were cut, that the server has executed every other one, and
    /// none twice.
    pub(super) fn assert_executed_once(mut self, most_cut: u64) {
        let Self { counted, cut, .. } = &mut self;
        assert!(*cut <= most_cut, "{cut} calls were cut");
        counted.sort_unstable();
        assert!(counted.is_sorted_by(|one, next| one < next), "{counted:?}");
        let executed = counted.last().copied().unwrap_or_default();
        let answered = u64::try_from(counted.len()).unwrap();
        assert!((answered..=answered + *cut).contains(&executed), "{answered} of {executed}");
    }
}

/// Calls until it is enough, and gives what the server has counted; none for a call that was cut.
fn call_on(
    caller: &mut dyn Caller,
    first_id: u64,
    enough: &AtomicBool,
    answered: &AtomicU64,
) -> Vec<Option<u64>> {
    let ids = (first_id..first_id + CALLS).take_while(|_| !enough.load(Ordering::Relaxed));
    let counts = ids.map(|id| {
        // Connections are now busy and now at rest.
        thread::sleep(Duration::from_millis(id % 7));
        let answer = caller.ask(&call(id, "count", &json!({})))?;
        assert_eq!(answer["id"], id, "{answer}");
        answered.fetch_add(1, Ordering::Relaxed);
        let count = text_of(&answer["result"], 0);
        Some(count.parse().unwrap_or_else(|_| panic!("{answer}")))
    });
    counts.collect()
}

/// Ends all calls, also when what happens fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
