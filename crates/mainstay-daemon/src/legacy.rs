//! What an earlier daemon left: which runs still live, which ended unseen, which are in the way.

use std::collections::HashMap;
use std::time::Duration;

use mainstay_core::{Exit, RunId, ServerName};
use mainstay_engine::{Found, FoundState, RunKey};

/// What is left of one server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Legacy {
    /// The last run that anybody remembers.
    pub(crate) last: RunId,
    /// The run that lives.
    pub(crate) survivor: Option<Survivor>,
    /// The newest run that ended while no daemon was there, and how.
    pub(crate) ended: Option<(RunId, Exit)>,
}

/// A run that lives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) run: RunId,
    pub(crate) pid: Option<u32>,
    pub(crate) age: Duration,
}

/// Sorts out what was found, given the last runs on record. Of several living runs of one server
/// only the newest survives; the others are named to be ended.
pub(crate) fn sort_out(
    last_runs: HashMap<ServerName, RunId>,
    mut found: Vec<Found>,
) -> (HashMap<ServerName, Legacy>, Vec<RunKey>) {
    found.sort_by(|a, b| a.key.cmp(&b.key));
    let mut surplus = Vec::new();
    let mut all: HashMap<ServerName, Legacy> = last_runs
        .into_iter()
        .map(|(name, last)| (name, Legacy { last, ..Legacy::default() }))
        .collect();
    for Found { key, state } in found {
        let legacy = all.entry(key.server.clone()).or_default();
        legacy.last = legacy.last.max(key.run);
        match state {
            FoundState::Alive { pid, age } => {
                let older = legacy.survivor.replace(Survivor { run: key.run, pid, age });
                surplus.extend(older.map(|older| RunKey::new(key.server, older.run)));
            }
            FoundState::Ended(exit) => legacy.ended = Some((key.run, exit)),
        }
    }
    (all, surplus)
}

#[cfg(test)]
mod tests {
    use mainstay_testkit::samples::key;

    use super::*;

    fn alive(name: &str, run: u64) -> Found {
        Found { key: key(name, run), state: FoundState::Alive { pid: None, age: Duration::ZERO } }
    }

    fn ended(name: &str, run: u64) -> Found {
        Found { key: key(name, run), state: FoundState::Ended(Exit::code(1)) }
    }

    #[test]
    fn only_the_newest_living_run_survives() {
        let found = vec![alive("a", 10), alive("a", 9), alive("a", 2), alive("b", 1)];
        let (all, surplus) = sort_out(HashMap::new(), found);
        let run = |name: &str| all[&name.parse().unwrap()].survivor.as_ref().unwrap().run;
        assert_eq!((run("a"), run("b")), (RunId::new(10), RunId::new(1)));
        assert_eq!(surplus, [key("a", 2), key("a", 9)]);
    }

    #[test]
    fn run_numbers_are_never_used_again() {
        let on_record = HashMap::from([
            ("a".parse().unwrap(), RunId::new(7)),
            ("b".parse().unwrap(), RunId::new(7)),
        ]);
        let (all, _) = sort_out(on_record, vec![ended("a", 3), ended("b", 9)]);
        let last = |name: &str| all[&name.parse().unwrap()].last;
        assert_eq!((last("a"), last("b")), (RunId::new(7), RunId::new(9)));
    }

    #[test]
    fn the_newest_end_that_nobody_saw_is_told() {
        let (all, _) = sort_out(HashMap::new(), vec![ended("a", 4), ended("a", 3)]);
        assert_eq!(all[&"a".parse().unwrap()].ended, Some((RunId::new(4), Exit::code(1))));
    }
}
