//! Which clients get which servers.

use super::setup::{CLINE, CURSOR, ClientFile, Setup, VSCODE, done, listed};
use crate::env::{TestEnv, fixture};

#[test]
fn without_a_chosen_client_there_is_a_hint() {
    let env = TestEnv::new();
    let file = ClientFile::install(&env, CURSOR);
    let output = env.run(["run", "time", "--wait", "--", &fixture()]);
    assert_eq!(output.code, 0, "{output}");
    for part in ["no client has been added", "mainstay client ls", "mainstay client add"] {
        assert!(output.stderr.contains(part), "{part} is missing in {output}");
    }
    let second = env.run(["run", "tide", "--wait", "--", &fixture()]);
    assert!(!second.stderr.contains("no client has been added"), "once is enough: {second}");
    env.ok(["rm", "tide"]);
    assert_eq!(file.text(), CURSOR.text);
    assert!(
        listed(&env, "cursor")["installed"] == true && listed(&env, "zed")["installed"] == false
    );

    let output = env.run(["client", "add", "cursor"]);
    assert_eq!(output.code, 0, "{output}");
    assert!(output.stderr.contains("~/.cursor/mcp.json"), "{output}");
    assert_eq!(file.json()["mcpServers"]["time"]["url"], env.server("time")["url"]);
    let output = env.run(["run", "web", "--wait", "--", &fixture()]);
    assert!(output.stderr.contains("added `web` to Cursor"), "{output}");
    assert_eq!(file.json()["mcpServers"]["web"]["url"], env.server("web")["url"]);

    env.ok(["client", "remove", "cursor"]);
    assert_eq!(file.text(), CURSOR.text);
    assert_eq!(listed(&env, "cursor")["chosen"], false);
}

#[test]
fn a_server_may_have_clients_of_its_own_or_none() {
    let env = TestEnv::new();
    let [cursor, vscode, cline] =
        [CURSOR, VSCODE, CLINE].map(|sort| ClientFile::install(&env, sort));
    env.ok(["client", "add", "vscode"]);
    env.run_server("time", &["--client", "cursor", "--client", "cline"], &[&fixture()]);
    assert!(cursor.text().contains("/time/mcp") && cline.text().contains("/time/mcp"));
    env.run_server("quiet", &["--no-clients"], &[&fixture()]);
    assert_eq!((vscode.text(), done(&env, "quiet")), (VSCODE.text.to_owned(), Vec::new()));
    env.run_server("web", &[], &[&fixture()]);
    assert!(vscode.text().contains("/web/mcp") && !cursor.text().contains("/web/mcp"));

    env.run_server("time", &["--reset"], &[&fixture()]);
    assert!(vscode.text().contains("/time/mcp"));
    assert_eq!((cursor.text(), cline.text()), (CURSOR.text.to_owned(), CLINE.text.to_owned()));
    env.ok(["rm", "--all"]);
    assert_eq!(vscode.text(), VSCODE.text);
}

#[test]
fn no_file_is_created_for_a_client_that_is_not_installed() {
    let env = TestEnv::new();
    let output = env.run(["client", "add", "cursor"]);
    assert_eq!(output.code, 1, "{output}");
    assert!(output.stderr.contains("Cursor") && output.stderr.contains("installed"), "{output}");
    assert!(!env.root().join("home/.cursor").exists());
    assert_eq!(env.run(["client", "add", "nobody"]).code, 2);
}

#[test]
fn why_and_events_name_changed_files() {
    let setup = Setup::new(CURSOR, &["--refresh", "always"]);
    setup.close_gate();
    setup.kill();
    setup.file.once(&setup.before);
    setup.once_done("removed");
    let file = "[ROOT]/home/.cursor/mcp.json";
    for reported in [setup.env.ok(["why", "time"]), setup.env.ok(["events", "time"])] {
        assert!(
            reported.contains("removed `time` from Cursor") && reported.contains(file),
            "{reported}"
        );
    }
    setup.env.ok(["rm", "time"]);
    assert_eq!(setup.file.text(), setup.before);
    let status = setup.env.run(["status", "time"]);
    assert_eq!(status.code, 3, "{status}");
}

#[test]
fn status_lists_the_clients_of_a_server() {
    let setup = Setup::new(CURSOR, &[]);
    let status = setup.env.json(["status", "time", "--json"]);
    let registration = &status["clients"][0];
    assert_eq!(
        (&registration["client"], &registration["standing"]),
        (&"cursor".into(), &"ours".into())
    );
    assert_eq!(registration["file"], "[ROOT]/home/.cursor/mcp.json");
    let text = setup.env.ok(["status", "time"]);
    assert!(text.contains("clients:    Cursor"), "{text}");
}
