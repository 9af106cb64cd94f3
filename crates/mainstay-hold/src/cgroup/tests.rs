//! The tests with real cgroups need the right to create them, as root has.

use std::process::{Child, Stdio};

use mainstay_testkit::cgroup::{TestCgroup, command_in};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// A run's cgroup in one of the test, with a cgroup that the server created in it, and a process in each.
struct Scene {
    parent: TestCgroup,
    cgroup: RunCgroup,
    processes: [Child; 2],
}

impl Scene {
    fn new() -> Self {
        let parent = TestCgroup::undelegated();
        let path = parent.path().join("mainstay-time-3-70-8812");
        let below = path.join("below");
        fs::create_dir(&path).unwrap();
        fs::create_dir(&below).unwrap();
        let id = Some(fs::metadata(&path).unwrap().ino());
        let processes = [&path, &below].map(|path| sleeper(path));
        Self { parent, cgroup: RunCgroup { path, id }, processes }
    }

    #[track_caller]
    fn is_unharmed(&mut self) {
        assert_eq!(self.parent.children().len(), 1);
        for process in &mut self.processes {
            assert_eq!(process.try_wait().unwrap(), None, "it was killed");
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for process in &mut self.processes {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// A process in a cgroup, once it is there.
fn sleeper(cgroup: &Path) -> Child {
    let child = command_in(cgroup, "sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let procs = cgroup.join("cgroup.procs");
    eventually("it is in the cgroup", || {
        members(&fs::read_to_string(&procs).unwrap()).contains(&child.id())
    });
    child
}

#[track_caller]
fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("never: {what}");
}

#[test]
fn a_cgroup_is_ended_with_everything_in_it_and_below() {
    let scene = Scene::new();
    assert!(scene.cgroup.end(LIMIT).unwrap(), "there was something to kill");
    assert_eq!(scene.parent.children(), <[&str; 0]>::default());
    assert!(!scene.cgroup.end(LIMIT).unwrap(), "it is gone");
}

#[test]
fn kernels_that_cannot_kill_a_cgroup_kill_its_processes() {
    let scene = Scene::new();
    let dir = scene.cgroup.open().unwrap().unwrap();
    kill_one_by_one(dir.as_fd()).unwrap();
    eventually("it is empty", || !is_populated(&read(dir.as_fd(), "cgroup.events").unwrap()));
}

#[test]
fn another_cgroup_of_the_same_name_is_left_alone() {
    let mut scene = Scene::new();
    let other = RunCgroup { id: scene.cgroup.id.map(|id| id + 1), ..scene.cgroup.clone() };
    other.kill().unwrap();
    assert!(!other.end(LIMIT).unwrap());
    scene.is_unharmed();
}

#[test]
fn a_cgroup_that_may_not_be_ours_is_removed_only_if_it_is_empty() {
    let mut scene = Scene::new();
    let unknown = RunCgroup { id: None, ..scene.cgroup.clone() };
    unknown.kill().unwrap();
    assert!(!unknown.end(LIMIT).unwrap());
    scene.is_unharmed();
    let empty = RunCgroup { path: scene.parent.path().join("mainstay-empty"), id: None };
    fs::create_dir(&empty.path).unwrap();
    assert!(!empty.end(LIMIT).unwrap());
    scene.is_unharmed();
}

#[test]
fn a_directory_outside_cgroupfs_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let id = Some(fs::metadata(temp.path()).unwrap().ino());
    assert!(!RunCgroup { path: temp.path().to_owned(), id }.end(LIMIT).unwrap());
    assert!(temp.path().exists());
}

#[test]
fn a_stuck_cgroup_is_given_up() {
    let temp = tempfile::tempdir().unwrap();
    let cgroup = RunCgroup { path: temp.path().join("file"), id: Some(1) };
    fs::write(&cgroup.path, "").unwrap();
    cgroup.end(Duration::from_millis(5)).unwrap_err();
}

#[test]
fn the_record_of_a_cgroup_stays_until_it_is_ended() {
    let temp = tempfile::tempdir().unwrap();
    let dir = rustix::fs::open(temp.path(), DIRECTORY, Mode::empty()).unwrap();
    let path = temp.path().join("mainstay-stuck");
    fs::write(&path, "").unwrap();
    let owner = crate::record::own_identity().unwrap();
    let cgroup = RunCgroup { path: path.clone(), id: Some(1) };
    record::write(dir.as_fd(), &Record { owner: owner.clone(), cgroup }).unwrap();
    let limit = Duration::from_millis(5);
    end_recorded(temp.path(), limit).unwrap_err();
    assert!(is_recorded(temp.path()) && recorded_by(&owner, temp.path()).is_some());
    fs::remove_file(&path).unwrap();
    assert!(!end_recorded(temp.path(), limit).unwrap());
    assert!(!is_recorded(temp.path()));
}

#[test]
fn the_name_is_safe_and_unique() {
    let check = |dir: &str, expected: &str| {
        assert_eq!(name(Path::new(dir), "70 8812 boot"), expected, "{dir}");
    };
    check("/run/runs/time/3", "mainstay-time-3-70-8812");
    check("/run/runs/a.b c/../\n", "mainstay-__-_-70-8812");
    check("/run/cgroup.procs/3", "mainstay-cgroup_procs-3-70-8812");
    check("/", "mainstay-_-70-8812");
    let long = format!("/{0}/{0}", "é".repeat(300));
    assert!(name(Path::new(&long), "4194304 99999999999 boot").len() < 255);
}

#[test]
fn a_cgroup_is_empty_only_if_the_kernel_reports_it() {
    assert!(!is_populated("populated 0\nfrozen 0\n"));
    assert!(is_populated("populated 1\nfrozen 0\n"));
    assert!(is_populated(""));
    assert_eq!(members("70\n0\n71\n"), [70, 71]);
}
