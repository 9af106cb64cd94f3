//! Canaries in place of secrets, searched for in every file and every output.

use std::fs;
use std::path::{Path, PathBuf};

use super::bystander::Bystander;
use crate::env::{TestEnv, fixture, free_port};

const ENVIRONMENT: &str = "canary-environment-7d1f";
const HEADER: &str = "canary-header-7d1f";
const QUERY: &str = "canary-query-7d1f";
const ARGUMENT: &str = "canary-argument-7d1f";
const ALL: [&str; 4] = [ENVIRONMENT, HEADER, QUERY, ARGUMENT];

fn files_below(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), all);
        } else if kind.is_file() {
            all.push(entry.path());
        }
    }
}

/// The names of the files that hold a canary.
fn files_with_canaries(env: &TestEnv) -> Vec<String> {
    let mut files = Vec::new();
    files_below(env.root(), &mut files);
    let has = |path: &PathBuf| {
        // A file may be removed meanwhile.
        let bytes = fs::read(path).unwrap_or_default();
        ALL.iter().any(|canary| bytes.windows(canary.len()).any(|part| part == canary.as_bytes()))
    };
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut found: Vec<String> = files.into_iter().filter(has).map(name).collect();
    found.sort_unstable();
    found
}

/// Adds a local server and one that runs elsewhere, with all canaries.
fn add_canaries(env: &TestEnv) {
    let variable = format!("SECRET={ENVIRONMENT}");
    let script = format!("exec '{}'", fixture());
    let command = ["/bin/sh", "-c", &script, "sh", "--token", ARGUMENT];
    env.run_server("local", &["-e", &variable], &command);
    let url = format!("http://127.0.0.1:{}/mcp?key={QUERY}", free_port());
    let header = format!("authorization=Bearer {HEADER}");
    env.run(["run", "elsewhere", "--url", &url, "--header", &header]);
    assert_eq!(env.json(["ls", "-a", "--json"]).as_array().unwrap().len(), 3);
}

#[test]
fn secrets_are_in_one_private_file_and_in_no_output_and_go_with_their_server() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    bystander.during("secrets in environment, header, URL and argument", || add_canaries(&env));
    let is_state = |name: &String| name.starts_with("state.db");
    let found = files_with_canaries(&env);
    assert!(!found.is_empty() && found.iter().all(is_state), "{found:?}");

    let outputs: [&[&str]; 13] = [
        &["ls", "-a"],
        &["ls", "-a", "--json"],
        &["status", "elsewhere"],
        &["status", "elsewhere", "--json"],
        &["why", "local"],
        &["why", "elsewhere"],
        &["why", "elsewhere", "--json"],
        &["events"],
        &["events", "--json"],
        &["logs", "elsewhere"],
        &["export"],
        &["client", "ls"],
        &["doctor"],
    ];
    for command in outputs {
        let case = format!("secrets in the output of {command:?}");
        let output = bystander.during(case, || env.run(command.iter().copied()));
        for canary in ALL {
            assert!(!output.to_string().contains(canary), "{command:?} prints {canary}: {output}");
        }
    }
    for command in [["status", "local"], ["logs", "local"]] {
        let case = format!("secrets in the output of {command:?}");
        let output = bystander.during(case, || env.run(command).to_string());
        assert!(!output.contains(ENVIRONMENT), "{command:?}: {output}");
    }

    bystander.during("secrets in files after `rm`", || {
        env.ok(["rm", "local"]);
        env.ok(["rm", "elsewhere"]);
    });
    assert_eq!(files_with_canaries(&env), Vec::<String>::new());
}

#[test]
fn an_export_marks_redacted_values_and_an_import_requires_them() {
    let env = TestEnv::new();
    env.run_server("fx", &[], &[&fixture()]);
    let mut bystander = Bystander::of(&env, "fx");
    add_canaries(&env);
    let export = bystander.during("an export of secrets", || env.run(["export"]));
    assert!(export.stderr.contains("replace HIDDEN-BY-MAINSTAY with them"), "{export}");
    assert!(export.stdout.contains(r#""--token", "HIDDEN-BY-MAINSTAY""#), "{export}");
    assert!(export.stdout.contains("/mcp?key=HIDDEN-BY-MAINSTAY"), "{export}");
    let text = export.stdout.replace("[ROOT]", env.root().to_str().unwrap());
    let file = env.write("servers.toml", &text);
    let unchanged = bystander.during("an import of servers that are there", || {
        env.run(["import", "--replace", file.to_str().unwrap()])
    });
    assert_eq!(unchanged.code, 0, "what is held is not asked for: {unchanged}");
    let lines: Vec<&str> = unchanged.stdout.lines().collect();
    assert!(lines.iter().all(|line| line.ends_with(" is unchanged")), "{unchanged}");
    for server in lines.iter().filter_map(|line| line.strip_suffix(" is unchanged")) {
        if server != "fx" {
            env.ok(["rm", server]);
        }
    }
    let mut command = env.command(["import", "--replace", file.to_str().unwrap()]);
    command.env("SECRET", "x").env("ELSEWHERE_AUTHORIZATION", "x");
    let import = bystander.during("an import without secrets", || env.run_prepared(command));
    assert_ne!(import.code, 0);
    assert!(import.stderr.contains("replace HIDDEN-BY-MAINSTAY with the values"), "{import}");
}
