//! Which settings of a server differ, by the flags that set them: values may be secrets.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_core::{ServerSpec, Workload};
use serde_json::Value;

/// The settings that differ, such as `command`, `-e TOKEN` and `--restart-max`.
pub(super) fn changes(old: &ServerSpec, new: &ServerSpec) -> Vec<String> {
    let now = match (&old.workload, &new.workload) {
        (Workload::Process(_), Workload::Process(_))
        | (Workload::Container(_), Workload::Container(_))
        | (Workload::Remote(_), Workload::Remote(_)) => None,
        (_, Workload::Process(_)) => Some("now a process"),
        (_, Workload::Container(_)) => Some("now a container"),
        (_, Workload::Remote(_)) => Some("now at a URL"),
    };
    let (old, new) = (settings(old), settings(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    // A workload of another kind has other settings.
    let differ = differ.filter(|name| now.is_none() || !name.starts_with("workload."));
    let flags: BTreeSet<String> = differ.map(|name| flag(name)).collect();
    flags.into_iter().chain(now.map(str::to_owned)).collect()
}

/// The flag that sets a setting.
fn flag(name: &str) -> String {
    let path: Vec<&str> = name.split('.').collect();
    match path[..] {
        ["workload", "command"] => "command".to_owned(),
        ["workload", "args"] => "arguments".to_owned(),
        ["workload", "path"] => "PATH".to_owned(),
        ["workload", "host"] => "address of the engine".to_owned(),
        ["workload", "env", ..] => format!("-e {}", path[2..].join(".")),
        ["workload", "headers" | "variables", ..] => format!("--header {}", path[2..].join(".")),
        ["workload", "volumes"] => "--volume".to_owned(),
        ["workload", "transport", _, "port"] => "--target-port".to_owned(),
        ["workload", "limits", "pids"] => "--pids-limit".to_owned(),
        ["workload", "limits", "new_privileges"] => "--allow-new-privileges".to_owned(),
        ["workload", "limits", "init"] => "--no-init".to_owned(),
        ["restart", delay @ ("max" | "initial" | "cap")] => format!("--restart-{delay}"),
        ["proxy", "late_results"] => "--no-late-results".to_owned(),
        ["proxy", "tool_timeouts", ..] => format!("--call-timeout {}", path[2..].join(".")),
        ["clients", "only"] => "clients".to_owned(),
        [.., last] => format!("--{}", last.replace('_', "-")),
        [] => String::new(),
    }
}

/// All settings, by their path in the spec.
fn settings(spec: &ServerSpec) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let Ok(Value::Object(parts)) = serde_json::to_value(spec) else { return all };
    for (part, value) in parts {
        match (part.as_str(), value) {
            // It has one member, named after its kind.
            ("workload", Value::Object(workload)) => {
                for value in workload.into_values() {
                    flatten("workload", value, &mut all);
                }
            }
            (part, value) => flatten(part, value, &mut all),
        }
    }
    all
}

fn flatten(name: &str, value: Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                flatten(&format!("{name}.{key}"), value, all);
            }
        }
        Value::Null => {}
        value => {
            all.insert(name.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::describe::tests::spec;
    use super::*;

    #[test]
    fn settings_that_differ_are_named() {
        let check = |old: &str, new: &str, expected: &[&str]| {
            let [old, new] = [old, new].map(|line| spec(line).unwrap());
            assert_eq!(changes(&old, &new), expected);
        };
        let old = "a -e X=1 -- serve";
        check(old, old, &[]);
        check(
            old,
            "a -e X=2 -e Y=1 --hold 1s --no-restart -- serve x",
            &["--hold", "--restart-max", "-e X", "-e Y", "command"],
        );
        check(old, "a --client zed -- serve", &["-e X", "clients"]);
        check("a --image b", "a --image c --memory 1g", &["--image", "--memory"]);
        let http = "a --transport streamable-http --target-port 80 --path /x -- serve";
        check("a -- serve", http, &["--path", "--target-port", "--transport"]);
        check(http, "a --url http://h/ --header-env A=TOKEN", &["now at a URL"]);
        check(
            "a --image b --no-init",
            "a --image b --cap-add CHOWN --read-only",
            &["--cap-add", "--no-init", "--read-only"],
        );
    }
}
