//! The well-behaved client that must be served during every attack.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::env::{TestEnv, fixture};
use crate::proxy::raw::Raw;

/// The time limit for a call of the bystander.
const LIMIT: Duration = Duration::from_secs(1);

/// A client with a session of its own.
pub(super) struct Bystander {
    session: Raw,
    calls: u64,
}

impl Bystander {
    /// Opens a session with the server of this name, which must be the fixture.
    pub(super) fn of(env: &TestEnv, server: &str) -> Self {
        let url = env.server(server)["url"].as_str().expect("a server has a URL").to_owned();
        Self { session: Raw::open(&url), calls: 0 }
    }

    /// Asserts that a call on a new connection is answered within a second.
    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "how long the call took is what is tested")]
    pub(super) fn is_served(&mut self) {
        self.calls += 1;
        let begun = Instant::now();
        let arguments = json!({"name": "echo", "arguments": {"text": "still here"}});
        let result = self.session.ask(self.calls, "tools/call", &arguments);
        let took = begun.elapsed();
        assert!(result.to_string().contains("still here"), "{result}");
        assert!(took < LIMIT, "the bystander waited for {took:?}");
    }
}

/// A bystander with a server of its own.
pub(super) fn with_bystander(env: &TestEnv) -> Bystander {
    env.run_server("bystander", &[], &[&fixture()]);
    Bystander::of(env, "bystander")
}
