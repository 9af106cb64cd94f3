//! The service as a user unit of systemd.
//!
//! The servers live in the unit's control group and must outlive the service, so only its main process
//! is ever signalled (`KillMode=process`), and Mainstay may create one per run below it (`Delegate=yes`).
//! Whatever restricts the unit restricts them, and they are the user's own programs: `docs/service.md` tells
//! which restrictions are safe, and why others are not.

mod quote;

use std::ffi::OsString;
use std::path::PathBuf;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::blueprint::ARGS;
use super::seal::sealed;
use super::tools::Answer;
use super::{Activity, Blueprint, Known, ServiceError, Step, Tools};

/// The name of the unit.
const UNIT: &str = "mainstay.service";

/// What is asked about the unit.
const PROPERTIES: &str = "--property=LoadState,ActiveState,UnitFileState,MainPID,NRestarts,\
                          ActiveEnterTimestamp,NeedDaemonReload";

/// Commands that users are told.
pub(crate) const ENABLE: &str = "systemctl --user enable --now mainstay";
pub(crate) const UNMASK: &str = "systemctl --user unmask mainstay";
pub(crate) const EDIT: &str = "systemctl --user edit mainstay";
pub(crate) const RESTART: &str = "systemctl --user restart mainstay";
pub(crate) const START_AT_BOOT: &str = "loginctl enable-linger";
pub(crate) const SHOW_LOG: &str = "journalctl --user --unit mainstay --lines 20";

/// A user unit of systemd.
#[derive(Debug)]
pub(crate) struct Systemd {
    pub(super) path: PathBuf,
    pub(super) unit: String,
    uid: u32,
}

impl Systemd {
    /// The unit as it should be, and where.
    pub(crate) fn new(
        blueprint: &Blueprint,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ServiceError> {
        let dir = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = dir("XDG_CONFIG_HOME").or_else(|| Some(dir("HOME")?.join(".config")));
        let path = config.ok_or(ServiceError::NoHome)?.join("systemd/user").join(UNIT);
        let uid = rustix::process::getuid().as_raw();
        Ok(Self { path, unit: unit(blueprint), uid })
    }

    fn lingers(&self, tools: &dyn Tools) -> Option<bool> {
        let uid = self.uid.to_string();
        let answer = tools.run(&["loginctl", "show-user", &uid, "--property=Linger"]).ok()?;
        match answer.stdout.trim() {
            "Linger=yes" => Some(true),
            "Linger=no" => Some(false),
            _ => None,
        }
    }

    pub(super) fn look(&self, tools: &dyn Tools) -> Result<Known, ServiceError> {
        let unreachable = |said: String| ServiceError::NoSystemd { said };
        let answer = tools
            .run(&["systemctl", "--user", "show", PROPERTIES, UNIT])
            .map_err(|error| unreachable(format!("`systemctl`: {error}")))?;
        match answer {
            Answer { ok: true, stdout, .. } => {
                Ok(Known { lingers: self.lingers(tools), ..known(&stdout) })
            }
            Answer { ok: false, .. } => Err(unreachable(answer.complaint())),
        }
    }
}

/// The command by which systemd does its part of a step, if it has one.
pub(super) fn command(step: Step) -> Option<Vec<&'static str>> {
    let words: &[&str] = match step {
        Step::Reload => &["daemon-reload"],
        Step::Enable => &["enable", "--quiet", UNIT],
        Step::Disable => &["disable", "--quiet", UNIT],
        Step::Start => &["start", UNIT],
        Step::Stop => &["stop", UNIT],
        Step::Keep | Step::Write | Step::Remove | Step::MakeWay | Step::Adopt => return None,
    };
    Some([&["systemctl", "--user"], words].concat())
}

/// What `systemctl show` says, property by property.
fn known(properties: &str) -> Known {
    let get = |name: &str| {
        let line = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default()
    };
    let activity = match get("ActiveState") {
        "active" | "reloading" | "refreshing" => Activity::Active,
        "activating" => Activity::Starting,
        "deactivating" => Activity::Stopping,
        "failed" => Activity::Failed,
        _ => Activity::Inactive,
    };
    Known {
        barred: get("LoadState") == "masked" || get("UnitFileState").starts_with("masked"),
        enabled: get("UnitFileState").starts_with("enabled"),
        activity,
        since: timestamp(get("ActiveEnterTimestamp")).filter(|_| activity == Activity::Active),
        pid: get("MainPID").parse().ok().filter(|pid| *pid > 0),
        restarts: get("NRestarts").parse().ok(),
        stale: get("NeedDaemonReload") == "yes",
        lingers: None,
    }
}

/// Reads "Mon 2026-11-16 09:18:23 UTC", which is how every version of systemd puts it in UTC.
fn timestamp(text: &str) -> Option<Timestamp> {
    let (_weekday, rest) = text.split_once(' ')?;
    let at = DateTime::strptime("%Y-%m-%d %H:%M:%S", rest.strip_suffix(" UTC")?).ok()?;
    at.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp())
}

fn unit(blueprint: &Blueprint) -> String {
    let start = quote::command(&blueprint.program, ARGS);
    let reload = quote::command(&blueprint.program, &["daemon", "reload"]);
    let set = |(name, value): &(&str, String)| {
        format!("Environment={}\n", quote::word(&format!("{name}={value}")))
    };
    let env = blueprint.env.iter().map(set).collect::<Vec<_>>().concat();
    let text = format!(
        "# Written by `mainstay service install`, which replaces it only if nobody else has changed it.\n\
         # Changes of yours belong in a file of their own: systemctl --user edit mainstay\n\
         \n\
         [Unit]\n\
         Description=Mainstay, which keeps MCP servers alive for AI clients\n\
         # What cannot start now, on a full disk say, may start in an hour.\n\
         StartLimitIntervalSec=0\n\
         \n\
         [Service]\n\
         Type=notify\n\
         NotifyAccess=main\n\
         ExecStart={start}\n\
         ExecReload={reload}\n\
         {env}\
         # An orderly end, as by `mainstay daemon stop`, was somebody's wish; any other was not.\n\
         Restart=always\n\
         RestartPreventExitStatus=0\n\
         RestartSec=2\n\
         WatchdogSec=30\n\
         TimeoutStartSec=120\n\
         TimeoutStopSec=150\n\
         # The servers are in this control group, and go on while the service is stopped or restarted.\n\
         KillMode=process\n\
         # Each run of a server gets a control group of its own, so that nothing of it survives.\n\
         Delegate=yes\n\
         # One of them that runs out of memory must not end the others.\n\
         OOMPolicy=continue\n\
         TasksMax=infinity\n\
         # What they are given may be secret, and does not belong on disk.\n\
         LimitCORE=0:infinity\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n\
         \n"
    );
    sealed(&text, &blueprint.state_dir)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tools::recorded::Recorded;
    use super::*;

    fn blueprint() -> Blueprint {
        Blueprint {
            program: "/opt/my tools/100%/mainstay".to_owned(),
            env: vec![("MAINSTAY_HOME", r#"/a "b" \c $d"#.to_owned())],
            state_dir: "/state".to_owned(),
        }
    }

    fn systemd(env: &[(&str, &str)]) -> Result<Systemd, ServiceError> {
        let var = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, v)| v.into());
        Systemd::new(&blueprint(), var)
    }

    #[test]
    fn the_whole_unit() {
        insta::assert_snapshot!(unit(&blueprint()), @r#"
        # Written by `mainstay service install`, which replaces it only if nobody else has changed it.
        # Changes of yours belong in a file of their own: systemctl --user edit mainstay

        [Unit]
        Description=Mainstay, which keeps MCP servers alive for AI clients
        # What cannot start now, on a full disk say, may start in an hour.
        StartLimitIntervalSec=0

        [Service]
        Type=notify
        NotifyAccess=main
        ExecStart=:"/opt/my tools/100%%/mainstay" daemon run --service
        ExecReload=:"/opt/my tools/100%%/mainstay" daemon reload
        Environment="MAINSTAY_HOME=/a \"b\" \\c $d"
        # An orderly end, as by `mainstay daemon stop`, was somebody's wish; any other was not.
        Restart=always
        RestartPreventExitStatus=0
        RestartSec=2
        WatchdogSec=30
        TimeoutStartSec=120
        TimeoutStopSec=150
        # The servers are in this control group, and go on while the service is stopped or restarted.
        KillMode=process
        # Each run of a server gets a control group of its own, so that nothing of it survives.
        Delegate=yes
        # One of them that runs out of memory must not end the others.
        OOMPolicy=continue
        TasksMax=infinity
        # What they are given may be secret, and does not belong on disk.
        LimitCORE=0:infinity

        [Install]
        WantedBy=default.target

        # mainstay-seal: d565b2dcde0608b73f44fefeab7114b4 7ac1387d11b1e002f2439e39f95be316
        "#);
    }

    #[test]
    fn the_unit_is_where_systemd_looks_for_it() {
        let path = |env: &[(&str, &str)]| systemd(env).map(|systemd| systemd.path);
        let home = ("HOME", "/home/me");
        let usual = Path::new("/home/me/.config/systemd/user/mainstay.service");
        assert_eq!(path(&[home]).unwrap(), usual);
        assert_eq!(path(&[home, ("XDG_CONFIG_HOME", "relative")]).unwrap(), usual);
        let other = path(&[home, ("XDG_CONFIG_HOME", "/c")]).unwrap();
        assert_eq!(other, Path::new("/c/systemd/user/mainstay.service"));
        assert!(matches!(path(&[]), Err(ServiceError::NoHome)));
    }

    #[test]
    fn what_systemd_says_is_understood() {
        let check = |said: &str, expected: Known| assert_eq!(known(said), expected, "{said}");
        check("LoadState=not-found\nActiveState=inactive\nMainPID=0\n", Known::default());
        let masked = Known { barred: true, ..Known::default() };
        check("LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n", masked);
        let failed = Known { activity: Activity::Failed, enabled: true, ..Known::default() };
        check("ActiveState=failed\nUnitFileState=enabled\nActiveEnterTimestamp=\n", failed);
        check(
            "MainPID=4711\nNRestarts=2\nLoadState=loaded\nActiveState=active\n\
             ActiveEnterTimestamp=Mon 2026-11-16 09:18:23 UTC\nUnitFileState=enabled\n\
             NeedDaemonReload=yes\n",
            Known {
                barred: false,
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
    fn who_has_no_systemd_is_told_what_to_do() {
        let systemd = systemd(&[("HOME", "/home/me")]).unwrap();
        let no_bus = "Failed to connect to bus: No medium found\n";
        let tools = Recorded::new(&[("systemctl", false, no_bus)]);
        let error = systemd.look(&tools).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the systemd of your login session cannot be reached: \
             Failed to connect to bus: No medium found"
        );
        let tools = Recorded::new(&[("systemctl", true, ""), ("loginctl", true, "Linger=no\n")]);
        assert_eq!(systemd.look(&tools).unwrap().lingers, Some(false));
    }
}
