//! A simulation: random scripts in virtual time drive a [`mainstay_session::Server`] and the [`mainstay_core::Supervisor`]s
//! of its runs with clients, an engine that takes its time or fails, and daemons that are killed and reloaded.
//!
//! `MAINSTAY_SIM_SCRIPTS` is the number of scripts of each test, and `MAINSTAY_SIM_SEED` runs one seed only. A failing
//! seed prints its shortest script.

mod client;
mod daemon;
mod driver;
mod ending;
mod engine;
mod event;
mod front;
mod http;
mod model;
mod received;
mod regressions;
mod rng;
mod script;
mod server;
mod session_drivers;
mod silence;
mod store;
mod world;

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::script::{Kind, Script};

/// The scripts of each test.
const SCRIPTS: u64 = 20_000;

#[test]
fn a_stdio_server_that_is_shared() -> Result<(), Failure> {
    simulate(Kind::Shared, false)
}

#[test]
fn a_stdio_server_with_a_run_for_each_session() -> Result<(), Failure> {
    simulate(Kind::Isolated, false)
}

#[test]
fn an_http_server() -> Result<(), Failure> {
    simulate(Kind::Http, false)
}

#[test]
fn daemons_that_are_killed_and_reloaded_with_a_shared_stdio_server() -> Result<(), Failure> {
    simulate(Kind::Shared, true)
}

#[test]
fn daemons_that_are_killed_and_reloaded_with_a_run_for_each_session() -> Result<(), Failure> {
    simulate(Kind::Isolated, true)
}

#[test]
fn daemons_that_are_killed_and_reloaded_with_an_http_server() -> Result<(), Failure> {
    simulate(Kind::Http, true)
}

#[expect(clippy::disallowed_methods, reason = "a test has no main function")]
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("it is a number"))
}

thread_local! {
    /// What the last panic said, and where.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A seed and its shortest failing script.
struct Failure(String);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn simulate(kind: Kind, has_daemons: bool) -> Result<(), Failure> {
    let seeds = match (setting("MAINSTAY_SIM_SEED"), setting("MAINSTAY_SIM_SCRIPTS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SCRIPTS),
    };
    std::panic::set_hook(Box::new(|panic| PANIC.set(panic.to_string())));
    for seed in seeds {
        let script = Script::random(kind, has_daemons, seed);
        if let Err(failure) = run(&script) {
            let (script, failure) = shrink(script, failure);
            let steps: Vec<_> = script.steps.iter().map(|step| format!("  {step:?}\n")).collect();
            let context = Script { steps: Vec::new(), ..script };
            let text = format!("seed {seed}: {failure}\n{context:?}\n{}", steps.concat());
            return Err(Failure(text));
        }
    }
    Ok(())
}

/// Runs a script. Returns what is wrong, if so.
fn run(script: &Script) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| drop(world::World::new(script.clone()).run())));
    result.map_err(|_| PANIC.take())
}

/// Removes steps as long as the script still fails.
fn shrink(mut script: Script, mut failure: String) -> (Script, String) {
    let mut size = script.steps.len().div_ceil(2);
    loop {
        let mut is_shorter = false;
        let mut start = 0;
        while start < script.steps.len() {
            let mut shorter = script.clone();
            let end = (start + size).min(script.steps.len());
            // The time passes nevertheless.
            let time: u64 = shorter.steps.drain(start..end).map(|step| step.after).sum();
            let mut attempts = vec![shorter.clone()];
            if let Some(next) = shorter.steps.get_mut(start) {
                next.after += time;
                attempts.push(shorter);
            }
            let failing = attempts.into_iter().find_map(|it| Some((run(&it).err()?, it)));
            if let Some((text, shorter)) = failing {
                (script, failure, is_shorter) = (shorter, text, true);
            } else {
                start += size;
            }
        }
        match (size, is_shorter) {
            (1, false) => return (script, failure),
            (1, true) => {}
            _ => size = size.div_ceil(2).max(1),
        }
    }
}
