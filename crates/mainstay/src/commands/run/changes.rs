//! Which settings of a server differ, by name: values may be secrets.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_core::ServerSpec;
use serde_json::Value;

/// The settings that differ, such as `command`, `env.TOKEN` and `restart.max`.
pub(super) fn changes(old: &ServerSpec, new: &ServerSpec) -> Vec<String> {
    let (old, new) = (settings(old), settings(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    names.into_iter().filter(|name| old.get(*name) != new.get(*name)).cloned().collect()
}

fn settings(spec: &ServerSpec) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let Ok(Value::Object(parts)) = serde_json::to_value(spec) else { return all };
    for (part, value) in parts {
        match (part.as_str(), value) {
            // It has one member, named after its kind.
            ("workload", Value::Object(workload)) => {
                for (kind, value) in workload {
                    flatten("", value, &mut all);
                    all.insert("kind".to_owned(), kind.into());
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
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                flatten(&name, value, all);
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
            &["command", "env.X", "env.Y", "proxy.hold", "restart.max"],
        );
        check(old, "a --client zed -- serve", &["clients.only", "env.X"]);
        check("a --image b", "a --image c --memory 1g", &["image", "limits.memory"]);
        let kinds = changes(&spec(old).unwrap(), &spec("a --url http://h/").unwrap());
        assert!(
            kinds.contains(&"kind".to_owned()) && kinds.contains(&"url".to_owned()),
            "{kinds:?}"
        );
    }
}
