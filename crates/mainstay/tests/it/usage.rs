//! Invalid commands and their errors. None of them needs a daemon.

use insta::assert_snapshot;

use crate::env::TestEnv;

fn run(line: &str) -> String {
    let env = TestEnv::new();
    let output = env.run(line.split(' '));
    assert!(!env.mainstay_home().exists(), "a usage error must not start a daemon");
    output.to_string()
}

#[test]
fn an_unknown_command() {
    assert_snapshot!(run("lst"), @"
    exit: 2
    --- stderr
    error: unrecognized subcommand 'lst'

      tip: some similar subcommands exist: 'stop', 'ls', 'list'

    Usage: mainstay <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn an_invalid_name() {
    assert_snapshot!(run("status My_Server"), @"
    exit: 2
    --- stderr
    error: invalid value 'My_Server' for '<NAME>': `My_Server` is not a valid server name: use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends

    For more information, try '--help'.
    ");
}

#[test]
fn no_command_to_run() {
    assert_snapshot!(run("run time"), @"
    exit: 2
    --- stderr
    error: there is nothing to run
    help: give a command after `--`, an --image, or the --url of a remote server
    ");
}

#[test]
fn a_command_without_the_dashes() {
    assert_snapshot!(run("run time uvx mcp-server-time"), @"
    exit: 2
    --- stderr
    error: unexpected argument `uvx`
    help: give an image with `--image`, or a command after `--`
    ");
}

#[test]
fn an_http_server_without_a_port() {
    assert_snapshot!(run("run web --transport streamable-http -- serve"), @"
    exit: 2
    --- stderr
    error: --transport streamable-http needs --target-port
    ");
}

#[test]
fn http_options_for_a_stdio_server() {
    assert_snapshot!(run("run web --target-port 80 -- serve"), @"
    exit: 2
    --- stderr
    error: --target-port and --path are for HTTP servers
    help: add `--transport streamable-http`
    ");
}

#[test]
fn a_command_and_a_url() {
    assert_snapshot!(run("run docs --url https://example.com/mcp -- serve"), @"
    exit: 2
    --- stderr
    error: a server has either a command or a --url
    help: leave out one of the two
    ");
}

#[test]
fn local_options_for_a_remote_server() {
    assert_snapshot!(run("run docs --url https://example.com/mcp -e TOKEN=x"), @"
    exit: 2
    --- stderr
    error: --transport stdio, --target-port, --path, --cwd, --env and --env-file are for local servers
    help: leave them out; give headers with --header-env
    ");
}

#[test]
fn headers_for_a_local_server() {
    assert_snapshot!(run("run time --header Authorization=hush -- serve"), @"
    exit: 2
    --- stderr
    error: --header and --header-env are for remote servers
    help: give a --url instead of a command, or set a variable with -e
    ");
}

#[test]
fn an_image_and_a_url() {
    assert_snapshot!(run("run docs --image mcp/docs --url https://example.com/mcp"), @"
    exit: 2
    --- stderr
    error: a server has either an --image or a --url
    help: leave out one of the two
    ");
}

#[test]
fn limits_for_a_process() {
    assert_snapshot!(run("run time --memory 2g -- serve"), @"
    exit: 2
    --- stderr
    error: --memory is for servers in containers
    help: give an --image, or leave out this option
    ");
}

#[test]
fn a_directory_for_a_container() {
    assert_snapshot!(run("run time --image mcp/time --cwd /srv"), @"
    exit: 2
    --- stderr
    error: --cwd is for servers that run as a process
    help: leave it out: the image sets the directory; mount files with --volume
    ");
}

#[test]
fn an_invalid_image_name() {
    assert_snapshot!(run("run time --image MCP/Time"), @"
    exit: 2
    --- stderr
    error: invalid value 'MCP/Time' for '--image <IMAGE>': the name of an image is in lower case; only its tag may have capitals

    For more information, try '--help'.
    ");
}

#[test]
fn a_relative_volume() {
    assert_snapshot!(run("run time --image mcp/time -v notes/today:/notes"), @"
    exit: 2
    --- stderr
    error: --volume notes/today:/notes: its source must be an absolute path or the name of a volume
    help: write `./notes/today` for a path in the current directory
    ");
}

#[test]
fn an_invalid_limit() {
    assert_snapshot!(run("run time --image mcp/time --memory plenty"), @"
    exit: 2
    --- stderr
    error: invalid value 'plenty' for '--memory <SIZE>': write a size as `512m` or `2g`, or `none` for no limit

    For more information, try '--help'.
    ");
}

#[test]
fn a_missing_docker_context() {
    let env = TestEnv::new().with_var("DOCKER_CONTEXT", "gone").with_var("DOCKER_CONFIG", "/none");
    assert_snapshot!(env.run(["run", "time", "--image", "mcp/time"]), @"
    exit: 1
    --- stderr
    error: DOCKER_CONTEXT: there is no Docker context `gone` in `/none/contexts/meta`
    help: fix it (`docker context ls` lists all contexts), or set DOCKER_HOST to the engine's address
    ");
    assert!(!env.mainstay_home().exists(), "it must not start a daemon");
}

#[test]
fn a_header_that_mainstay_sets_itself() {
    assert_snapshot!(run("run docs --url https://example.com/mcp --header Mcp-Session-Id=1"), @"
    exit: 2
    --- stderr
    error: --header Mcp-Session-Id: the header `mcp-session-id` is set by Mainstay itself
    ");
}

#[test]
fn a_header_from_a_variable_that_is_not_set() {
    assert_snapshot!(run("run docs --url https://example.com/ --header-env authorization=NONE"), @"
    exit: 2
    --- stderr
    error: --header-env authorization=NONE: the variable is not set
    ");
}

#[test]
fn a_url_with_a_password() {
    assert_snapshot!(run("run docs --url https://me:hush@example.com/mcp"), @"
    exit: 2
    --- stderr
    error: invalid value 'https://me:hush@example.com/mcp' for '--url <URL>': it contains a user or a password: send them in an `authorization` header instead

    For more information, try '--help'.
    ");
}

#[test]
fn isolation_of_a_server_that_speaks_http() {
    let line = "run web --isolate --transport streamable-http --target-port 80 -- serve";
    assert_snapshot!(run(line), @"
    exit: 2
    --- stderr
    error: --isolate is for stdio servers
    help: leave it out: an HTTP server keeps its sessions apart itself
    ");
}

#[test]
fn a_port_equal_to_the_target_port() {
    let line = "run web --port 80 --transport streamable-http --target-port 80 -- serve";
    assert_snapshot!(run(line), @"
    exit: 2
    --- stderr
    error: server `web`: port 80 is the server's own, so Mainstay cannot listen on it
    ");
}

#[test]
fn a_hold_that_is_too_long() {
    assert_snapshot!(run("run time --hold 1h -- serve"), @"
    exit: 2
    --- stderr
    error: server `time`: a request cannot be held longer than 10 minutes
    ");
}

#[test]
fn an_address_that_other_machines_may_reach() {
    let env = TestEnv::new().with_var("MAINSTAY_LISTEN", "0.0.0.0:7433");
    assert_snapshot!(env.run(["ls"]), @"
    exit: 4
    --- stderr
    error: the daemon could not be started: MAINSTAY_LISTEN: `0.0.0.0:7433` may be reached by other machines
    help: put a loopback address such as 127.0.0.1:7433 first; further addresses may be public, and requests there need a token (`mainstay token create`)
    ");
}

#[test]
fn an_unknown_client() {
    assert_snapshot!(run("client add curser"), @"
    exit: 2
    --- stderr
    error: invalid value 'curser' for '[ID]...'
      [possible values: cursor, vscode, vscode-insiders, vscode-server, cline, roo-code, claude-code, claude-desktop, codex, gemini-cli, qwen-code, opencode, zed, windsurf, devin, copilot-cli, kiro, lm-studio, factory]

      tip: a similar value exists: 'cursor'

    For more information, try '--help'.
    ");
    assert_snapshot!(run("run time --client claude -- serve"), @"
    exit: 2
    --- stderr
    error: invalid value 'claude' for '--client <ID>'
      [possible values: cursor, vscode, vscode-insiders, vscode-server, cline, roo-code, claude-code, claude-desktop, codex, gemini-cli, qwen-code, opencode, zed, windsurf, devin, copilot-cli, kiro, lm-studio, factory]

      tip: some similar values exist: 'claude-code', 'claude-desktop'

    For more information, try '--help'.
    ");
}

#[test]
fn a_client_by_another_name() {
    let tip = |id: &str| {
        let output = TestEnv::new().run(["client", "show", id]);
        assert_eq!(output.code, 2, "{output}");
        let tip = output.stderr.lines().find(|line| line.contains("tip: ")).map(str::trim);
        tip.unwrap_or_default().to_owned()
    };
    assert_eq!(tip("zde"), "tip: a similar value exists: 'zed'");
    assert_eq!(tip("VS Code"), "tip: a similar value exists: 'vscode'");
    assert_eq!(tip("emacs"), "");
}

#[test]
fn a_missing_home_is_not_created() {
    let env = TestEnv::new();
    assert_snapshot!(env.run(["connect", "time", "--home", "elsewhere"]), @"
    exit: 2
    --- stderr
    error: --home: the directory `[ROOT]/project/elsewhere` does not exist
    help: give the MAINSTAY_HOME of the instance that has the server
    ");
    assert!(!env.work().join("elsewhere").exists());
}

#[test]
fn clients_and_no_clients() {
    assert_snapshot!(run("run time --no-clients --client zed -- serve"), @"
    exit: 2
    --- stderr
    error: the argument '--no-clients[=<BOOL>]' cannot be used with '--client <ID>'

    Usage: mainstay run [OPTIONS] <NAME> -- <COMMAND>...
           mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]
           mainstay run [OPTIONS] <NAME> --url <URL>

    For more information, try '--help'.
    ");
}

#[test]
fn no_client_to_add() {
    assert_snapshot!(run("client add"), @"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      <ID|--all>

    Usage: mainstay client add <ID|--all>

    For more information, try '--help'.
    ");
}

#[test]
fn an_invalid_refresh_mode() {
    assert_snapshot!(run("run time --refresh often -- serve"), @"
    exit: 2
    --- stderr
    error: invalid value 'often' for '--refresh <WHEN>'
      [possible values: auto, always, never]

    For more information, try '--help'.
    ");
}

#[test]
fn an_invalid_duration() {
    assert_snapshot!(run("run time --stable-after soon -- serve"), @"
    exit: 2
    --- stderr
    error: invalid value 'soon' for '--stable-after <TIME>': write a duration with its unit, as `45s` or `2m`

    For more information, try '--help'.
    ");
}

#[test]
fn a_variable_that_is_not_set() {
    assert_snapshot!(run("run time -e NO_SUCH_TOKEN -- serve"), @"
    exit: 2
    --- stderr
    error: -e NO_SUCH_TOKEN: the variable is not set in your environment
    help: give its value: `-e NO_SUCH_TOKEN=VALUE`
    ");
}

#[test]
fn a_file_of_variables_with_a_bad_line() {
    let env = TestEnv::new();
    env.write("vars", "A=1\n# fine\nB\n");
    assert_snapshot!(env.run(["run", "time", "--env-file", "vars", "--", "serve"]), @"
    exit: 2
    --- stderr
    error: `vars`, line 3: expected KEY=VALUE
    ");
}

#[test]
fn all_servers_and_some() {
    assert_snapshot!(run("stop --all time"), @"
    exit: 2
    --- stderr
    error: the argument '--all' cannot be used with '[NAME]...'

    Usage: mainstay stop <NAME|--all>

    For more information, try '--help'.
    ");
}

#[test]
fn no_servers_at_all() {
    assert_snapshot!(run("restart"), @"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      <NAME|--all>

    Usage: mainstay restart <NAME|--all>

    For more information, try '--help'.
    ");
}

#[test]
fn arguments_that_are_not_an_object() {
    assert_snapshot!(run("call time now [1]"), @r#"
    exit: 2
    --- stderr
    error: the arguments must be a JSON object: they are an array
    help: write them like this: '{"city": "Paris"}'
    "#);
}

#[test]
fn arguments_that_are_not_json() {
    let output = TestEnv::new().run_with_input(["call", "time", "now", "-"], "{\n  \"a\": ,\n}");
    assert_snapshot!(output, @r#"
    exit: 2
    --- stderr
    error: the arguments must be a JSON object: expected value at line 2 column 8
    help: write them like this: '{"city": "Paris"}'
    "#);
}

#[test]
fn no_directory_for_state() {
    let env = TestEnv::new();
    let mut command = env.command(["ls"]);
    let output = command.env_remove("HOME").env_remove("MAINSTAY_HOME").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_snapshot!(String::from_utf8(output.stderr).unwrap(), @"
    error: neither MAINSTAY_HOME nor HOME is set, so there is no place to keep state
    help: set HOME, or MAINSTAY_HOME to an absolute path
    ");
}

#[test]
fn a_relative_home() {
    assert_snapshot!(TestEnv::new().with_var("MAINSTAY_HOME", "here").run(["ls"]), @"
    exit: 1
    --- stderr
    error: MAINSTAY_HOME is `here`, which is not an absolute path
    help: set HOME, or MAINSTAY_HOME to an absolute path
    ");
}
