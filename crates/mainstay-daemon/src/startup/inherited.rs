//! What an earlier daemon left: the runs that are alive, those that ended while no daemon ran, and surplus ones.

use std::collections::HashMap;

use jiff::Timestamp;
use mainstay_core::supervisor::{InheritedRun, RunDetails};
use mainstay_core::{Cause, Exit, RunId, ServerName, UnitHistory, WorkloadKind};
use mainstay_engine::{Found, FoundState, RunKey};

use crate::state::event_log::{Clocks, EarlierRuns, Progress};

/// What an earlier daemon left of one server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// The last run that is known.
    pub(crate) last: RunId,
    /// The run that is alive, as far as is known, and its engine. Since when it is ready is not known here.
    pub(crate) alive: Option<(WorkloadKind, InheritedRun)>,
    /// The newest run that ended while no daemon ran, and how.
    pub(crate) ended: Option<(RunId, Exit)>,
    pub(crate) progress: Option<Progress>,
}

impl Inherited {
    /// The history of the server that was created at this time, and the run that ended while no daemon ran. If the machine
    /// was rebooted since, that is the cause.
    pub(crate) fn past(
        &self,
        created_at: Timestamp,
        clocks: Clocks,
        boot: &str,
    ) -> (UnitHistory, Option<(RunId, Cause)>) {
        let progress = self.progress.as_ref();
        let own = progress.and_then(|progress| progress.past(created_at, clocks));
        let rebooted = own.is_some()
            && self.alive.is_none()
            && progress.is_some_and(|progress| progress.is_of_earlier_boot(boot));
        let past = own.unwrap_or_default();
        let past = UnitHistory { last: past.last.max(self.last), ..past };
        match past.unfinished_run().filter(|_| rebooted) {
            Some(run) => (past.after_reboot(clocks.now), Some((run, Cause::MachineRestarted))),
            None => (past, self.ended.map(|(run, exit)| (run, Cause::Exited(exit)))),
        }
    }

    /// Takes out a run that is in another engine than its server is now.
    pub(crate) fn take_misplaced(
        &mut self,
        engine: WorkloadKind,
    ) -> Option<(WorkloadKind, InheritedRun)> {
        self.alive.take_if(|(found_in, _)| *found_in != engine)
    }
}

/// Assigns the runs that were found to servers. Of several runs of one server that are alive, only the newest is kept;
/// the others are returned, to be ended.
pub(crate) fn sort_out(
    known: EarlierRuns,
    mut found: Vec<(WorkloadKind, Found)>,
) -> (HashMap<ServerName, Inherited>, Vec<(WorkloadKind, RunKey)>) {
    found.sort_by(|(_, a), (_, b)| a.key.cmp(&b.key));
    let mut surplus = Vec::new();
    let mut all: HashMap<ServerName, Inherited> = known
        .last_runs
        .into_iter()
        .map(|(name, last)| (name, Inherited { last, ..Inherited::default() }))
        .collect();
    for (name, progress) in known.progress {
        all.entry(name).or_default().progress = Some(progress);
    }
    for (engine, Found { key, state }) in found {
        let inherited = all.entry(key.server.clone()).or_default();
        inherited.last = inherited.last.max(key.run);
        let run = key.run;
        let alive = match state {
            FoundState::Alive { pid, container, age } => {
                let details = RunDetails { pid, container };
                InheritedRun { run, age, ready_for: None, details, is_assumed: false }
            }
            FoundState::Unknown => InheritedRun::assumed(run),
            FoundState::Ended(exit) => {
                inherited.ended = Some((run, exit));
                continue;
            }
        };
        let older = inherited.alive.replace((engine, alive));
        surplus.extend(older.map(|(engine, older)| (engine, RunKey::new(key.server, older.run))));
    }
    (all, surplus)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mainstay_testkit::samples::key;

    use super::*;

    fn alive(name: &str, run: u64) -> (WorkloadKind, Found) {
        let state = FoundState::Alive { pid: None, container: None, age: Duration::ZERO };
        (WorkloadKind::Process, Found { key: key(name, run), state })
    }

    fn ended(name: &str, run: u64) -> (WorkloadKind, Found) {
        (
            WorkloadKind::Process,
            Found { key: key(name, run), state: FoundState::Ended(Exit::code(1)) },
        )
    }

    #[test]
    fn only_the_newest_running_run_is_kept() {
        let found = vec![alive("a", 10), alive("a", 9), alive("a", 2), alive("b", 1)];
        let (all, surplus) = sort_out(EarlierRuns::default(), found);
        let run = |name: &str| all[&name.parse().unwrap()].alive.as_ref().unwrap().1.run;
        assert_eq!((run("a"), run("b")), (RunId::new(10), RunId::new(1)));
        assert_eq!(surplus, [2, 9].map(|run| (WorkloadKind::Process, key("a", run))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_whose_end_was_not_seen_before_a_reboot_ended_with_it() {
        let clocks = Clocks::read();
        let (created_at, run) = (clocks.wall, RunId::new(4));
        let progress = |boot| {
            let past = UnitHistory { last: run, ..UnitHistory::default() };
            Some(Progress::of(created_at, &past, clocks, boot))
        };
        let left = |boot, found: Vec<(WorkloadKind, Found)>| {
            let (mut all, _) = sort_out(EarlierRuns::default(), found);
            let inherited = all.remove(&"a".parse().unwrap()).unwrap_or_default();
            Inherited { progress: progress(boot), ..inherited }
        };
        let check = |inherited: &Inherited, created_at, expected: Option<Cause>| {
            let (past, unseen) = inherited.past(created_at, clocks, "this");
            assert_eq!(unseen.clone().map(|(_, cause)| cause), expected);
            let rebooted = unseen.filter(|(_, cause)| *cause == Cause::MachineRestarted);
            assert_eq!(past.last_end.map(|end| (end.run, end.cause)), rebooted);
        };
        let exited = Some(Cause::Exited(Exit::code(1)));
        check(&left("this", vec![]), created_at, None);
        check(&left("this", vec![ended("a", 4)]), created_at, exited.clone());
        check(&left("earlier", vec![]), created_at, Some(Cause::MachineRestarted));
        check(&left("earlier", vec![ended("a", 4)]), created_at, Some(Cause::MachineRestarted));
        check(&left("earlier", vec![alive("a", 4)]), created_at, None);
        // Another server, and an end that was recorded.
        check(&left("earlier", vec![]), created_at + Duration::from_secs(1), None);
        let (seen, _) = left("earlier", vec![]).past(created_at, clocks, "this");
        let seen = Some(Progress::of(created_at, &seen, clocks, "earlier"));
        assert_eq!(
            Inherited { progress: seen, ..Inherited::default() }.past(created_at, clocks, "this").1,
            None
        );
    }

    #[test]
    fn a_run_of_unknown_state_counts_as_alive() {
        let unknown = Found { key: key("a", 4), state: FoundState::Unknown };
        let (all, surplus) =
            sort_out(EarlierRuns::default(), vec![(WorkloadKind::Container, unknown)]);
        let inherited = &all[&"a".parse().unwrap()];
        assert_eq!(
            inherited.alive,
            Some((WorkloadKind::Container, InheritedRun::assumed(RunId::new(4))))
        );
        assert_eq!((inherited.last, surplus), (RunId::new(4), Vec::new()));
    }

    #[test]
    fn a_run_in_another_engine_is_not_kept() {
        let (mut all, _) = sort_out(EarlierRuns::default(), vec![alive("a", 3)]);
        let inherited = all.get_mut(&"a".parse().unwrap()).unwrap();
        assert_eq!(inherited.take_misplaced(WorkloadKind::Process), None);
        assert_eq!(
            inherited.take_misplaced(WorkloadKind::Remote).map(|(_, found)| found.run),
            Some(RunId::new(3))
        );
        assert_eq!((&inherited.alive, inherited.last), (&None, RunId::new(3)));
    }

    #[test]
    fn run_numbers_are_never_used_again() {
        let on_record = HashMap::from([
            ("a".parse().unwrap(), RunId::new(7)),
            ("b".parse().unwrap(), RunId::new(7)),
        ]);
        let known = EarlierRuns { last_runs: on_record, ..EarlierRuns::default() };
        let (all, _) = sort_out(known, vec![ended("a", 3), ended("b", 9)]);
        let last = |name: &str| all[&name.parse().unwrap()].last;
        assert_eq!((last("a"), last("b")), (RunId::new(7), RunId::new(9)));
    }

    #[test]
    fn the_newest_end_while_no_daemon_ran_is_reported() {
        let (all, _) = sort_out(EarlierRuns::default(), vec![ended("a", 4), ended("a", 3)]);
        assert_eq!(all[&"a".parse().unwrap()].ended, Some((RunId::new(4), Exit::code(1))));
    }
}
