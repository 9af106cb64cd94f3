//! The well-behaved client that must be served during every attack.
//!
//! Each case of the suite is one [`Bystander::during`] or [`Bystander::after`], which prints `case: NAME`, so
//! that the cases of a run can be counted.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::env::{TestEnv, fixture};
use crate::proxy::raw::Raw;

/// The time limit for a call of the bystander: 1 s, and more in a build without optimizations, which needs many
/// times as long for the large messages of an attack.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 3 } else { 1 });

/// The pause between two calls of the bystander.
const STEP: Duration = Duration::from_millis(10);

/// A client with a session of its own.
pub(crate) struct Bystander {
    session: Raw,
    calls: u64,
}

impl Bystander {
    /// Opens a session with the server of this name, which must be the fixture.
    pub(crate) fn of(env: &TestEnv, server: &str) -> Self {
        Self::at(env.server(server)["url"].as_str().expect("a server has a URL"))
    }

    /// The same, with the server at this URL.
    pub(crate) fn at(url: &str) -> Self {
        Self { session: Raw::open(url), calls: 0 }
    }

    /// The same, as a caller with a token.
    pub(crate) fn with_token(url: &str, token: &str) -> Self {
        Self { session: Raw::open_as(url, Some(format!("Bearer {token}"))), calls: 0 }
    }

    /// A case: calls again and again during the attack, and once after it. Each call must be answered in time.
    pub(crate) fn during<T>(&mut self, case: impl Display, attack: impl FnOnce() -> T) -> T {
        announce(&case);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let calls = scope.spawn(|| {
                loop {
                    let is_last = is_over.load(Ordering::Acquire);
                    self.is_served();
                    if is_last {
                        break;
                    }
                    thread::sleep(STEP);
                }
            });
            let result = {
                let _over = SetOnDrop(&is_over);
                attack()
            };
            calls.join().unwrap_or_else(|_| panic!("the bystander was not served: {case}"));
            result
        })
    }

    /// A case that ends the daemon, or the connections to it: calls once after the attack.
    #[track_caller]
    pub(crate) fn after<T>(&mut self, case: impl Display, attack: impl FnOnce() -> T) -> T {
        announce(&case);
        let result = attack();
        self.is_served();
        result
    }

    /// Asserts that a call on a new connection is answered within the limit.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "how long the call took is what is tested")]
    pub(crate) fn is_served(&mut self) {
        self.calls += 1;
        let begun = Instant::now();
        let arguments = json!({"name": "echo", "arguments": {"text": "still here"}});
        let result = self.session.ask(self.calls, "tools/call", &arguments);
        let took = begun.elapsed();
        assert!(result.to_string().contains("still here"), "{result}");
        assert!(took < LIMIT, "the bystander waited for {took:?}");
    }
}

#[expect(clippy::print_stderr, reason = "the cases of a run are counted")]
fn announce(case: &impl Display) {
    eprintln!("case: {case}");
}

/// Ends the calls of a bystander even if the attack panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A bystander with a server of its own.
pub(crate) fn with_bystander(env: &TestEnv) -> Bystander {
    env.run_server("bystander", &[], &[&fixture()]);
    Bystander::of(env, "bystander")
}
