use std::cell::RefCell;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::rc::Rc;

use super::*;

type Commands = Rc<RefCell<Vec<String>>>;

fn output(ok: bool, text: &str) -> Output {
    let (stdout, stderr) = if ok { (text, "") } else { ("", text) };
    Output {
        status: ExitStatus::from_raw(if ok { 0 } else { 256 }),
        stdout: stdout.into(),
        stderr: stderr.into(),
    }
}

/// A service with recorded answers, by the beginning of the command; every other command succeeds. Also returns the
/// commands that were run.
fn service(home: &Path, answers: &[(&'static str, bool, &'static str)]) -> (Service, Commands) {
    let var = |name: &str| (name == "HOME").then(|| home.as_os_str().to_owned());
    let mut service = Service::new(Path::new("/bin/mainstay"), home, var).unwrap();
    let (commands, answers) = (Commands::default(), answers.to_vec());
    let recorded = Rc::clone(&commands);
    service.run = Box::new(move |words| {
        let command = words.join(" ");
        let answer = answers.iter().find(|(begin, ..)| command.starts_with(begin));
        recorded.borrow_mut().push(command.clone());
        Ok(answer.map_or(output(true, ""), |(_, ok, text)| output(*ok, text)))
    });
    (service, commands)
}

fn execute(service: &Service, steps: &[Step]) -> Result<(), CliError> {
    steps.iter().try_for_each(|step| service.execute(*step))
}

#[test]
fn an_install_and_an_uninstall_run_these_commands() {
    let home = tempfile::tempdir().unwrap();
    let (service, commands) = service(home.path(), &[]);
    let (unit, state) = (service.unit_state().unwrap(), service.state().unwrap());
    execute(&service, &plan::install(unit, &state, false).unwrap()).unwrap();
    assert_eq!(service.unit_state().unwrap(), UnitState::Current);
    let active = ServiceState { activity: Activity::Active, ..ServiceState::default() };
    execute(&service, &plan::uninstall(UnitState::Current, &active).unwrap()).unwrap();
    assert_eq!(service.unit_state().unwrap(), UnitState::Absent);
    let commands = commands.borrow();
    let changes: Vec<&str> = commands.iter().skip(2).map(String::as_str).collect();
    let expected = [
        "systemctl --user daemon-reload",
        "systemctl --user enable --quiet mainstay.service",
        "systemctl --user start mainstay.service",
        "systemctl --user stop mainstay.service",
        "systemctl --user disable --quiet mainstay.service",
        "systemctl --user daemon-reload",
    ];
    assert_eq!(changes, expected);
}

#[test]
fn a_first_install_that_fails_is_rolled_back() {
    let home = tempfile::tempdir().unwrap();
    let refused = ("systemctl --user enable", false, "Failed to enable unit: no\n");
    let (service, _) = service(home.path(), &[refused]);
    let error = execute(&service, &[Step::Write, Step::Reload, Step::Enable]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`systemctl --user enable --quiet mainstay.service` failed: Failed to enable unit: no"
    );
    service.roll_back();
    assert_eq!(service.unit_state().unwrap(), UnitState::Absent);
}

#[test]
fn without_systemd_the_error_says_why() {
    let home = tempfile::tempdir().unwrap();
    let no_bus = "Failed to connect to bus: No medium found\n";
    let (offline, _) = service(home.path(), &[("systemctl", false, no_bus)]);
    assert_eq!(
        offline.state().unwrap_err().to_string(),
        "the systemd of your login session cannot be reached: \
         Failed to connect to bus: No medium found"
    );
    let answers = [("systemctl", true, ""), ("loginctl", true, "Linger=no\n")];
    let (online, _) = service(home.path(), &answers);
    assert_eq!(online.state().unwrap().lingers, Some(false));
}

#[test]
fn programs_run_in_the_c_locale() {
    let output = run_program(&["sh", "-c", "echo $LC_ALL $TZ; echo no >&2; exit 3"]).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"C UTC\n"[..]));
    assert_eq!(failure(&output), "no");
    assert_eq!(run_program(&["no-such-program"]).unwrap_err().kind(), NotFound);
}

#[test]
fn the_unit_is_where_systemd_looks_for_it() {
    let path = |env: &[(&str, &str)]| {
        let var = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        Service::new(Path::new("/m"), Path::new("/state"), var).map(|service| service.path)
    };
    let home = ("HOME", "/home/me");
    let usual = Path::new("/home/me/.config/systemd/user/mainstay.service");
    assert_eq!(path(&[home]).unwrap(), usual);
    assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "relative")]).unwrap(), usual);
    let other = path(&[home, ("XDG_CONFIG_HOME", "/c")]).unwrap();
    assert_eq!(other, Path::new("/c/systemd/user/mainstay.service"));
    assert!(path(&[]).unwrap_err().to_string().starts_with("HOME is not an absolute path"));
}

#[test]
fn the_output_of_systemd_is_parsed() {
    let check = |output: &str, expected: ServiceState| {
        assert_eq!(service_state(output), expected, "{output}");
    };
    check("LoadState=not-found\nActiveState=inactive\nMainPID=0\n", ServiceState::default());
    let masked = ServiceState { masked: true, ..ServiceState::default() };
    check("LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n", masked);
    let failed =
        ServiceState { activity: Activity::Failed, enabled: true, ..ServiceState::default() };
    check("ActiveState=failed\nUnitFileState=enabled\nActiveEnterTimestamp=\n", failed);
    check(
        "MainPID=4711\nNRestarts=2\nLoadState=loaded\nActiveState=active\n\
         ActiveEnterTimestamp=Mon 2026-11-16 09:18:23 UTC\nUnitFileState=enabled\n\
         NeedDaemonReload=yes\n",
        ServiceState {
            masked: false,
            enabled: true,
            activity: Activity::Active,
            since: Some("2026-11-16T09:18:23Z".parse().unwrap()),
            pid: Some(4711),
            restarts: Some(2),
            stale: true,
            lingers: None,
        },
    );
}

#[test]
fn a_unit_is_written_kept_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let (service, _) = service(home.path(), &[]);
    assert_eq!(service.unit_state().unwrap(), UnitState::Absent);
    execute(&service, &[Step::Write, Step::Write]).unwrap();
    assert_eq!(fs::read_to_string(service.path()).unwrap(), service.unit());
    assert_eq!(fs::metadata(service.path()).unwrap().permissions().mode() & 0o777, 0o644);
    service.execute(Step::KeepOld).unwrap();
    assert_eq!(service.unit_state().unwrap(), UnitState::Absent);
    assert_eq!(fs::read_to_string(service.old_unit()).unwrap(), service.unit());
    service.execute(Step::Remove).unwrap();
    let left: Vec<_> = fs::read_dir(service.path().parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_link_is_replaced_and_its_target_is_not() {
    let home = tempfile::tempdir().unwrap();
    let (service, _) = service(home.path(), &[]);
    let dir = service.path().parent().unwrap();
    fs::create_dir_all(dir).unwrap();
    std::os::unix::fs::symlink(dir.join("mine"), service.path()).unwrap();
    assert_eq!(service.unit_state().unwrap(), UnitState::Edited, "there is something");
    service.execute(Step::Write).unwrap();
    assert!(!dir.join("mine").exists());
    assert_eq!(service.unit_state().unwrap(), UnitState::Current);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let home = tempfile::tempdir().unwrap();
    let (service, _) = service(home.path(), &[]);
    fs::create_dir_all(home.path().join(".config")).unwrap();
    fs::write(home.path().join(".config/systemd"), "").unwrap();
    let error = service.execute(Step::Write).unwrap_err();
    assert!(error.to_string().ends_with("mainstay.service` cannot be written"), "{error}");
}
