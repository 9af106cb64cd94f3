//! The service as an agent of launchd, on macOS.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::blueprint::ARGS;
use super::seal::sealed;
use super::{Activity, Blueprint, Known, Manager, Manual, ServiceError, Step, Tools};

/// What launchd knows the agent by.
const LABEL: &str = "mainstay.daemon";

/// An agent of launchd.
#[derive(Debug)]
pub(crate) struct Launchd {
    path: PathBuf,
    unit: String,
    /// Whose agents it is among.
    domain: String,
}

impl Launchd {
    /// The agent as it should be, and where.
    pub(crate) fn new(
        blueprint: &Blueprint,
        var: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ServiceError> {
        let home = var("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let library = home.ok_or(ServiceError::NoHome)?.join("Library");
        let log = library.join("Logs/mainstay.log");
        let domain = format!("gui/{}", rustix::process::getuid().as_raw());
        let path = library.join("LaunchAgents").join(format!("{LABEL}.plist"));
        Ok(Self { path, unit: plist(blueprint, &log.to_string_lossy()), domain })
    }

    fn target(&self) -> String {
        format!("{}/{LABEL}", self.domain)
    }
}

impl Manager for Launchd {
    fn name(&self) -> &'static str {
        "launchd"
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn unit(&self) -> &str {
        &self.unit
    }

    fn look(&self, tools: &dyn Tools) -> Result<Known, ServiceError> {
        let unreachable = |said: String| ServiceError::NoManager {
            manager: "launchd",
            said,
            help: "the service needs a session at the screen: log in there",
        };
        let disabled = tools
            .run(&["launchctl", "print-disabled", &self.domain])
            .map_err(|error| unreachable(format!("`launchctl`: {error}")))?;
        if !disabled.ok {
            return Err(unreachable(disabled.complaint()));
        }
        let agent = tools
            .run(&["launchctl", "print", &self.target()])
            .map_err(|error| unreachable(format!("`launchctl`: {error}")))?;
        Ok(known(&disabled.stdout, agent.ok.then_some(&agent.stdout)))
    }

    fn command(&self, step: Step) -> Option<Vec<String>> {
        let path = self.path.to_string_lossy().into_owned();
        let words = match step {
            Step::Start => vec!["bootstrap".to_owned(), self.domain.clone(), path],
            Step::Stop => vec!["bootout".to_owned(), self.target()],
            // An agent is started at login because its file is there.
            Step::Keep
            | Step::Write
            | Step::Remove
            | Step::Reload
            | Step::Enable
            | Step::Disable
            | Step::MakeWay
            | Step::Adopt => return None,
        };
        Some(std::iter::once("launchctl".to_owned()).chain(words).collect())
    }

    fn manual(&self) -> Manual {
        Manual {
            turn_on: "launchctl bootstrap gui/$UID ~/Library/LaunchAgents/mainstay.daemon.plist",
            unbar: "launchctl enable gui/$UID/mainstay.daemon",
            change: None,
            renew: "mainstay service uninstall && mainstay service install",
            at_boot: None,
            log: "tail ~/Library/Logs/mainstay.log",
        }
    }
}

/// What `launchctl print-disabled` says, and `launchctl print` if it knows the agent.
fn known(disabled: &str, agent: Option<&String>) -> Known {
    let barred = disabled.lines().any(|line| {
        let said = line.trim().strip_prefix('"').and_then(|line| line.strip_prefix(LABEL));
        said.is_some_and(|said| matches!(said, "\" => disabled" | "\" => true"))
    });
    let known = Known { barred, enabled: !barred, ..Known::default() };
    let Some(agent) = agent else { return known };
    let get = |name: &str| {
        let value =
            |line: &str| line.trim().strip_prefix(name)?.strip_prefix(" = ").map(str::to_owned);
        agent.lines().find_map(value)
    };
    let pid = get("pid").and_then(|pid| pid.parse().ok());
    let runs = get("runs").and_then(|runs| runs.parse::<u32>().ok());
    let activity = match (pid, get("last exit code").as_deref()) {
        (Some(_), _) => Activity::Active,
        (None, Some("0")) => Activity::Inactive,
        // launchd will start it again by itself.
        (None, Some(_) | None) => Activity::Starting,
    };
    Known { activity, pid, restarts: runs.map(|runs| runs.saturating_sub(1)), ..known }
}

fn plist(blueprint: &Blueprint, log: &str) -> String {
    let words = std::iter::once(blueprint.program.as_str()).chain(ARGS.iter().copied());
    let words: Vec<String> =
        words.map(|word| format!("    <string>{}</string>", escaped(word))).collect();
    let words = words.join("\n");
    let set = |(name, value): &(&str, String)| {
        format!("    <key>{name}</key>\n    <string>{}</string>\n", escaped(value))
    };
    let env = blueprint.env.iter().map(set).collect::<Vec<_>>().concat();
    let log = escaped(log);
    let text = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Written by `mainstay service install`, which replaces it only if nobody else has changed it. -->
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>{LABEL}</string>
  <key>ProgramArguments</key>
  <array>
{words}
  </array>
  <key>EnvironmentVariables</key>
  <dict>
{env}  </dict>
  <key>RunAtLoad</key>
  <true/>
  <!-- An orderly end, as by `mainstay daemon stop`, was somebody's wish; any other was not. -->
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <!-- The servers go on while the service is stopped or restarted. -->
  <key>AbandonProcessGroup</key>
  <true/>
  <key>ExitTimeOut</key>
  <integer>150</integer>
  <key>StandardErrorPath</key>
  <string>{log}</string>
</dict>
</plist>
"#
    );
    sealed(&text, &blueprint.state_dir, ("<!-- ", " -->"))
}

/// Text inside of an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tools::recorded::Recorded;
    use super::*;

    fn launchd() -> Launchd {
        let blueprint = Blueprint {
            program: "/opt/R&D <1>/mainstay".to_owned(),
            env: vec![("PATH", "/bin:/a \"b\"".to_owned())],
            state_dir: "/state".to_owned(),
        };
        Launchd::new(&blueprint, |name| (name == "HOME").then(|| "/Users/me".into())).unwrap()
    }

    #[test]
    fn the_whole_agent() {
        insta::assert_snapshot!(launchd().unit(), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
        <!-- Written by `mainstay service install`, which replaces it only if nobody else has changed it. -->
        <plist version="1.0">
        <dict>
          <key>Label</key>
          <string>mainstay.daemon</string>
          <key>ProgramArguments</key>
          <array>
            <string>/opt/R&amp;D &lt;1&gt;/mainstay</string>
            <string>daemon</string>
            <string>run</string>
            <string>--service</string>
          </array>
          <key>EnvironmentVariables</key>
          <dict>
            <key>PATH</key>
            <string>/bin:/a "b"</string>
          </dict>
          <key>RunAtLoad</key>
          <true/>
          <!-- An orderly end, as by `mainstay daemon stop`, was somebody's wish; any other was not. -->
          <key>KeepAlive</key>
          <dict>
            <key>SuccessfulExit</key>
            <false/>
          </dict>
          <!-- The servers go on while the service is stopped or restarted. -->
          <key>AbandonProcessGroup</key>
          <true/>
          <key>ExitTimeOut</key>
          <integer>150</integer>
          <key>StandardErrorPath</key>
          <string>/Users/me/Library/Logs/mainstay.log</string>
        </dict>
        </plist>
        <!-- mainstay-seal: 0d8a5b23930f6a64bb9d6f6e7305d03a 7ac1387d11b1e002f2439e39f95be316 -->
        "#);
    }

    #[test]
    fn what_launchd_says_is_understood() {
        let none =
            "disabled services = {\n\t\"other\" => disabled\n\t\"mainstay.daemon\" => enabled\n}\n";
        let barred = "disabled services = {\n\t\"mainstay.daemon\" => disabled\n}\n";
        let off = Known { enabled: true, ..Known::default() };
        assert_eq!(known(none, None), off);
        assert_eq!(known(barred, None), Known { barred: true, ..Known::default() });
        let ended = "gui/501/mainstay.daemon = {\n\tstate = not running\n\tlast exit code = 0\n}\n";
        assert_eq!(known(none, Some(&ended.to_owned())), off);
        let runs = "gui/501/mainstay.daemon = {\n\tstate = running\n\truns = 3\n\tpid = 4711\n}\n";
        let expected = Known {
            enabled: true,
            activity: Activity::Active,
            pid: Some(4711),
            restarts: Some(2),
            ..Known::default()
        };
        assert_eq!(known(none, Some(&runs.to_owned())), expected);
    }

    #[test]
    fn an_agent_that_is_not_loaded_is_no_failure() {
        let tools = Recorded::new(&[("launchctl print gui", false, "Could not find service")]);
        assert_eq!(launchd().look(&tools).unwrap().activity, Activity::Inactive);
        let tools = Recorded::new(&[("launchctl print-disabled", false, "no such domain")]);
        assert!(launchd().look(&tools).is_err());
    }
}
