//! Looks at a file without a lock, while a change of ours is under way.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use mainstay_clients::file::{Observer, Step};
use mainstay_clients::ledger::Standing;
use mainstay_clients::{Machine, Registrar};

use crate::home::{Home, age_ledger, http, server};

fn standing(registrar: &Registrar) -> Standing {
    let entries = registrar.status("cursor").unwrap().entries;
    entries.into_iter().find(|entry| entry.name == "time").unwrap().standing
}

/// A home whose Cursor has our entry.
fn scene() -> (Home, PathBuf) {
    let home = Home::new();
    let file = home.write(".cursor/mcp.json", "{}");
    home.registrar().add("cursor", &server("time"), &http()).unwrap();
    (home, file)
}

/// Looks before each step of a change, as if the change had been under way for years.
struct Onlooker {
    state: PathBuf,
    machine: Machine,
    seen: Mutex<Vec<(Step, Standing)>>,
}

impl Observer for Onlooker {
    fn before(&self, step: Step) -> io::Result<()> {
        // The first read comes before anything is begun.
        if step != Step::Read {
            age_ledger(&self.state);
            let registrar = Registrar::new(self.state.clone(), self.machine.clone());
            self.seen.lock().unwrap().push((step, standing(&registrar)));
        }
        Ok(())
    }
}

#[test]
fn a_slow_change_is_not_mistaken_for_a_removal_by_a_user() {
    let (home, file) = scene();
    let (state, machine) = (home.state(), home.machine());
    let onlooker = Arc::new(Onlooker { state, machine, seen: Mutex::default() });
    // The client has written its own settings over ours.
    fs::write(&file, "{}").unwrap();
    let slow = Registrar::observed(home.state(), home.machine(), onlooker.clone());
    slow.add("cursor", &server("time"), &http()).unwrap();
    let seen = onlooker.seen.lock().unwrap();
    assert!(seen.iter().any(|(step, _)| *step == Step::Rename), "{seen:?}");
    assert!(seen.iter().all(|(_, standing)| *standing != Standing::Withdrawn), "{seen:?}");
}

#[test]
fn an_interrupted_change_is_not_mistaken_for_a_removal_by_a_user() {
    /// Dies where a process that is killed would.
    struct Killed;
    impl Observer for Killed {
        fn before(&self, step: Step) -> io::Result<()> {
            assert_ne!(step, Step::Create, "killed");
            Ok(())
        }
    }
    let (home, file) = scene();
    fs::write(&file, "{}").unwrap();
    let killed = Registrar::observed(home.state(), home.machine(), Arc::new(Killed));
    let add = || killed.add("cursor", &server("time"), &http());
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(add)).unwrap_err();
    age_ledger(&home.state());
    assert_eq!(standing(&home.registrar()), Standing::Absent);
    let change = home.registrar().add("cursor", &server("time"), &http()).unwrap();
    assert!(change.wrote(), "{change}");
}

#[test]
fn the_time_of_a_change_is_when_the_file_was_written() {
    #[derive(Default)]
    struct Times(Mutex<Option<Timestamp>>);
    impl Observer for Times {
        fn before(&self, step: Step) -> io::Result<()> {
            if step == Step::Release {
                *self.0.lock().unwrap() = Some(Timestamp::now());
            }
            Ok(())
        }
    }
    let home = Home::new();
    home.write(".cursor/mcp.json", "{}");
    let times = Arc::new(Times::default());
    let registrar = Registrar::observed(home.state(), home.machine(), times.clone());
    registrar.add("cursor", &server("time"), &http()).unwrap();
    let written = times.0.lock().unwrap().unwrap();
    let recorded = registrar.records().unwrap()[0].at;
    assert!(recorded >= written, "{recorded} is before {written}");
}

#[test]
fn status_during_a_change_reports_no_removal_by_a_user() {
    let (home, file) = scene();
    let registrar = home.registrar();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            for _ in 0..100 {
                fs::write(&file, "{}").unwrap();
                registrar.add("cursor", &server("time"), &http()).unwrap();
            }
        });
        while !client.is_finished() {
            assert_ne!(standing(&home.registrar()), Standing::Withdrawn);
        }
    });
}
