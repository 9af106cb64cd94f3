//! `mainstay service` with a fake systemd that records its commands. Tests with a real one are in `docker::service`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::json;

use crate::env::{Output, TestEnv, fixture, is_alive, pid_of};

/// A fake `systemctl` and `loginctl`: changes are written to `log`, and `show` prints the content of `facts`.
const SYSTEMCTL: &str = r#"#!/bin/sh
dir=$(dirname "$0")
case "$*" in
  *show-user*) echo Linger=no ;;
  *" show "*) [ -e "$dir/facts" ] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; }
    cat "$dir/facts" ;;
  *) echo "$*" >>"$dir/log"
    ! grep -qs "^$2\$" "$dir/refuse" || { echo "Failed to $2 unit" >&2; exit 1; } ;;
esac
"#;

struct FakeSystemd {
    env: TestEnv,
    dir: PathBuf,
}

impl FakeSystemd {
    /// A user whose systemd has no service.
    fn new() -> Self {
        let systemd = Self::without_systemd();
        systemd.facts("LoadState=not-found\nActiveState=inactive\nUnitFileState=\nMainPID=0\n");
        systemd
    }

    fn without_systemd() -> Self {
        let env = TestEnv::new();
        let dir = env.root().join("systemd");
        fs::create_dir(&dir).unwrap();
        for name in ["systemctl", "loginctl"] {
            fs::write(dir.join(name), SYSTEMCTL).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", dir.display());
        Self { env: env.with_var("PATH", &path), dir }
    }

    fn facts(&self, facts: &str) {
        fs::write(self.dir.join("facts"), facts).unwrap();
    }

    fn service(&self, args: &[&str]) -> Output {
        self.env.run([&["service"], args].concat())
    }

    fn unit(&self) -> PathBuf {
        self.env.root().join("home/.config/systemd/user/mainstay.service")
    }

    /// The commands of systemd since the last call.
    fn reported(&self) -> String {
        let log = self.dir.join("log");
        let reported = fs::read_to_string(&log).unwrap_or_default();
        let _none = fs::remove_file(log);
        reported
    }
}

#[test]
fn an_install_writes_the_unit_and_starts_it() {
    let systemd = FakeSystemd::new();
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 0
    --- stderr
    wrote ~/.config/systemd/user/mainstay.service
    the service is running, and starts when you log in
    to start it at boot, without a login: `loginctl enable-linger`
    ");
    assert_snapshot!(systemd.reported(), @"
    --user daemon-reload
    --user enable --quiet mainstay.service
    --user start mainstay.service
    ");
    let unit = fs::read_to_string(systemd.unit()).unwrap();
    let root = systemd.env.root().to_str().unwrap();
    assert_eq!(systemd.env.ok(["service", "install", "--print"]), unit.replace(root, "[ROOT]"));
    let home = systemd.env.mainstay_home();
    assert!(
        unit.contains(&format!("Environment=\"MAINSTAY_HOME={}\"\n", home.display())),
        "{unit}"
    );
    assert!(unit.contains("Environment=\"MAINSTAY_LISTEN=127.0.0.1:0\"\n"), "{unit}");
    assert_eq!(fs::metadata(systemd.unit()).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_daemon_on_demand_is_replaced_and_its_servers_keep_running() {
    let systemd = FakeSystemd::new();
    let server = systemd.env.run_server("time", &[], &[&fixture()]);
    let daemon = systemd.env.daemon();
    let output = systemd.service(&["install"]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("is stopped; its servers keep running"), "{output}");
    assert!(!is_alive(daemon) && is_alive(pid_of(&server)));

    systemd.facts("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n");
    assert_snapshot!(systemd.service(&["uninstall"]), @"
    exit: 0
    --- stderr
    removed ~/.config/systemd/user/mainstay.service
    servers keep running, supervised by a daemon that was started on demand
    the service is uninstalled
    ");
    assert!(!systemd.unit().exists());
    assert_eq!(systemd.env.server("time")["pid"], server["pid"]);
}

#[test]
fn an_installed_service_keeps_its_state() {
    let systemd = FakeSystemd::new();
    systemd.service(&["install"]);
    let mut outdated = systemd.env.command(["service", "install", "--print"]);
    outdated.env("MAINSTAY_LISTEN", "127.0.0.1:7000");
    fs::write(systemd.unit(), outdated.output().unwrap().stdout).unwrap();
    systemd.reported();
    systemd.facts("LoadState=loaded\nActiveState=inactive\nUnitFileState=disabled\n");
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 0
    --- stderr
    wrote ~/.config/systemd/user/mainstay.service
    the service is up to date
    it is still stopped; `systemctl --user enable --now mainstay` starts it
    ");
    assert_snapshot!(systemd.reported(), @"--user daemon-reload");
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 0
    --- stderr
    the service is already installed
    it is still stopped; `systemctl --user enable --now mainstay` starts it
    ");
    assert_eq!(systemd.reported(), "");
}

#[test]
fn a_masked_service_stays_masked() {
    let systemd = FakeSystemd::new();
    fs::create_dir_all(systemd.unit().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/null", systemd.unit()).unwrap();
    systemd.facts("LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n");
    assert_snapshot!(systemd.service(&["install", "--force"]), @"
    exit: 1
    --- stderr
    error: the service is masked
    help: `systemctl --user unmask mainstay` unmasks it
    ");
    assert_snapshot!(systemd.service(&["uninstall"]), @"
    exit: 0
    --- stderr
    no service is installed; it stays masked
    ");
    assert_eq!(fs::read_link(systemd.unit()).unwrap().to_str(), Some("/dev/null"));
    assert_eq!(systemd.reported(), "");
}

#[test]
fn a_unit_that_was_changed_by_hand_is_not_lost() {
    let systemd = FakeSystemd::new();
    systemd.service(&["install"]);
    let mine = fs::read_to_string(systemd.unit()).unwrap().replace("RestartSec=2", "RestartSec=9");
    fs::write(systemd.unit(), &mine).unwrap();
    systemd.facts("LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n");
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 1
    --- stderr
    error: the installed unit was changed by hand
    help: move your changes to a drop-in (`systemctl --user edit mainstay`); `--force` replaces the unit and keeps it as `[ROOT]/home/.config/systemd/user/mainstay.service.old`
    ");
    assert_eq!(fs::read_to_string(systemd.unit()).unwrap(), mine);
    assert_snapshot!(systemd.service(&["install", "--force"]), @"
    exit: 0
    --- stderr
    the old unit is kept as ~/.config/systemd/user/mainstay.service.old
    wrote ~/.config/systemd/user/mainstay.service
    the service is up to date
    the new unit takes effect after a restart: `systemctl --user restart mainstay`
    ");
    assert_eq!(fs::read_to_string(systemd.unit().with_extension("service.old")).unwrap(), mine);
}

#[test]
fn one_service_serves_one_instance() {
    let systemd = FakeSystemd::new();
    systemd.service(&["install"]);
    let mut other = systemd.env.command(["service", "install"]);
    other.env("MAINSTAY_HOME", systemd.env.root().join("other"));
    assert_snapshot!(systemd.env.run_prepared(other), @"
    exit: 1
    --- stderr
    error: the installed service belongs to another instance of Mainstay
    help: there is one service per user, for one MAINSTAY_HOME; `install --force` switches it to this instance
    ");
}

#[test]
fn a_failed_install_is_rolled_back() {
    let systemd = FakeSystemd::new();
    fs::write(systemd.dir.join("refuse"), "enable\n").unwrap();
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 1
    --- stderr
    wrote ~/.config/systemd/user/mainstay.service
    the incomplete installation is removed
    error: `systemctl --user enable --quiet mainstay.service` failed: Failed to enable unit
    help: see `journalctl --user --unit mainstay --lines 20`
    ");
    assert!(!systemd.unit().exists());
    fs::write(systemd.dir.join("refuse"), "start\n").unwrap();
    assert_eq!(systemd.service(&["install"]).code, 1);
    assert!(systemd.unit().exists(), "systemd will try again to start it");
}

#[test]
fn without_systemd_nothing_is_written() {
    let systemd = FakeSystemd::without_systemd();
    assert_snapshot!(systemd.service(&["install"]), @"
    exit: 1
    --- stderr
    error: the systemd of your login session cannot be reached: Failed to connect to bus: No medium found
    help: the service needs systemd and a login session: log in directly, not with `su` or `sudo`; without systemd, add the line `@reboot mainstay daemon start` to your crontab (`crontab -e`), with the full path of `mainstay`, or `mainstay daemon start >/dev/null 2>&1` to ~/.profile
    ");
    assert_eq!(systemd.service(&["status"]).code, 1);
    assert_snapshot!(systemd.service(&["uninstall"]), @"
    exit: 0
    --- stderr
    no service is installed
    ");
    assert!(!systemd.env.root().join("home/.config").exists());
}

#[test]
fn the_status_is_complete() {
    let systemd = FakeSystemd::new();
    assert_snapshot!(systemd.service(&["status"]), @"
    exit: 4
    --- stdout
    service:  not installed
    path:     ~/.config/systemd/user/mainstay.service
    ");
    systemd.service(&["install"]);
    systemd.facts(
        "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=4711\nNRestarts=2\n\
         ActiveEnterTimestamp=Mon 2026-11-16 09:18:23 UTC\nNeedDaemonReload=no\n",
    );
    let output = systemd.service(&["status", "--json"]);
    assert_eq!(output.code, 0, "{output}");
    let report: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let expected = json!({
        "manager": "systemd",
        "installed": true,
        "state": "active",
        "since": "2026-11-16T09:18:23Z",
        "pid": 4711,
        "restarts": 2,
        "enabled": true,
        "masked": false,
        "linger": false,
        "unit": "current",
        "path": "[ROOT]/home/.config/systemd/user/mainstay.service",
    });
    assert_eq!(report, expected);
    systemd.facts("LoadState=loaded\nActiveState=failed\nUnitFileState=disabled\nMainPID=0\n");
    fs::write(systemd.unit(), "[Service]\n").unwrap();
    assert_snapshot!(systemd.service(&["status"]), @"
    exit: 4
    --- stdout
    service:   failed
    at login:  no
    unit:      changed by hand
    path:      ~/.config/systemd/user/mainstay.service
    ");
}
