//! Commands that make no sense, and what is said about them. None of them needs a daemon.

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

      tip: some similar subcommands exist: 'stop', 'ls'

    Usage: mainstay <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn a_name_that_is_no_dns_label() {
    assert_snapshot!(run("status My_Server"), @"
    exit: 2
    --- stderr
    error: invalid value 'My_Server' for '<NAME>': `My_Server` is no valid server name: use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends

    For more information, try '--help'.
    ");
}

#[test]
fn no_command_to_run() {
    assert_snapshot!(run("run time"), @"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      <COMMAND>...

    Usage: mainstay run <NAME> -- <COMMAND>...

    For more information, try '--help'.
    ");
}

#[test]
fn a_command_without_the_dashes() {
    assert_snapshot!(run("run time uvx mcp-server-time"), @"
    exit: 2
    --- stderr
    error: unexpected argument 'uvx' found

    Usage: mainstay run [OPTIONS] <NAME> -- <COMMAND>...

    For more information, try '--help'.
    ");
}

#[test]
fn an_http_server_without_a_port() {
    assert_snapshot!(run("run web --transport streamable-http -- serve"), @"
    exit: 2
    --- stderr
    error: the following required arguments were not provided:
      --target-port <PORT>

    Usage: mainstay run --transport <TRANSPORT> --target-port <PORT> <NAME> -- <COMMAND>...

    For more information, try '--help'.
    ");
}

#[test]
fn http_options_for_a_stdio_server() {
    assert_snapshot!(run("run web --target-port 80 -- serve"), @"
    exit: 2
    --- stderr
    error: --target-port and --path are for servers that speak HTTP
    help: add `--transport streamable-http`
    ");
}

#[test]
fn a_duration_that_is_none() {
    assert_snapshot!(run("run time --stable-after soon -- serve"), @"
    exit: 2
    --- stderr
    error: invalid value 'soon' for '--stable-after <TIME>': expected number at 0: write a duration as `45s` or `2m`

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
fn arguments_that_are_no_object() {
    assert_snapshot!(run("call time now [1]"), @r#"
    exit: 2
    --- stderr
    error: the arguments are no JSON object: they are an array
    help: write them like this: '{"city": "Paris"}'
    "#);
}

#[test]
fn arguments_that_are_no_json() {
    let output = TestEnv::new().run_with_input(["call", "time", "now", "-"], "{\n  \"a\": ,\n}");
    assert_snapshot!(output, @r#"
    exit: 2
    --- stderr
    error: the arguments are no JSON object: expected value at line 2 column 8
    help: write them like this: '{"city": "Paris"}'
    "#);
}

#[test]
fn no_place_for_state() {
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
