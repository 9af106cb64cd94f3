//! Files that cannot be imported: each is refused as a whole, without a daemon.

use insta::assert_snapshot;

use crate::env::TestEnv;

fn import(text: &str) -> String {
    let env = TestEnv::new();
    env.write("servers.toml", text);
    let output = env.run(["import", "servers.toml"]);
    assert!(!env.mainstay_home().exists(), "a file that is refused must not start a daemon");
    output.to_string()
}

#[test]
fn a_file_that_is_missing() {
    assert_snapshot!(TestEnv::new().run(["import", "no-such.toml"]), @"
    exit: 1
    --- stderr
    error: `no-such.toml` cannot be read: No such file or directory (os error 2)
    ");
}

#[test]
fn a_file_that_is_not_toml() {
    assert_snapshot!(import("version = 1\n[servers.time\n"), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: TOML parse error at line 2, column 14
      |
    2 | [servers.time
      |              ^
    unclosed table, expected `]`
    ");
}

#[test]
fn an_unknown_field() {
    assert_snapshot!(import("version = 1\n[servers.time]\ncommand = ['x']\nenvs.A = 'x'\n"), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: TOML parse error at line 4, column 1
      |
    4 | envs.A = 'x'
      | ^^^^
    unknown field `envs`, expected one of `command`, `image`, `url`, `headers`, `cwd`, `args`, `engine`, `host`, `volumes`, `network`, `user`, `transport`, `target-port`, `path`, `env`, `limits`, `clients`, `refresh`, `proxy`, `restart`
    ");
}

#[test]
fn an_invalid_name() {
    assert_snapshot!(import("version = 1\n[servers.'My Server']\ncommand = ['x']\n"), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: TOML parse error at line 2, column 10
      |
    2 | [servers.'My Server']
      |          ^^^^^^^^^^^
    `My Server` is not a valid server name: use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends
    ");
}

#[test]
fn a_version_that_is_newer() {
    assert_snapshot!(import("version = 7\n"), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: the file has version 7, and this program reads version 1
    help: use a newer version of Mainstay
    ");
}

#[test]
fn an_invalid_url() {
    assert_snapshot!(import("version = 1\n[servers.docs]\nurl = 'example.com'\n"), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: TOML parse error at line 3, column 7
      |
    3 | url = 'example.com'
      |       ^^^^^^^^^^^^^
    it is not a URL: write it as https://HOST/PATH
    ");
}

#[test]
fn a_header_that_mainstay_sets_itself() {
    let file = "version = 1\n[servers.docs]\nurl = 'http://h/'\nheaders.Host = 'x'\n";
    assert_snapshot!(import(file), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: TOML parse error at line 4, column 9
      |
    4 | headers.Host = 'x'
      |         ^^^^
    the header `host` is set by Mainstay itself
    ");
}

#[test]
fn invalid_settings() {
    let file = "version = 1\n[servers.a]\ncommand = ['x']\nproxy.hold = '1h'\n";
    assert_snapshot!(import(file), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: server `a`: a request cannot be held longer than 10 minutes
    ");
}

#[test]
fn variables_that_are_not_set() {
    let file = "version = 1\n\
                [servers.a]\ncommand = ['x']\nenv.A = { from-env = 'ONE' }\n\
                [servers.b]\ncommand = ['x']\nenv.B = { from-env = 'TWO' }\n";
    assert_snapshot!(import(file), @"
    exit: 1
    --- stderr
    error: `servers.toml` cannot be imported: these variables are not set in your environment: ONE, TWO
    help: set them and try again: the file has only their names
    ");
}

#[test]
fn standard_input_is_a_file_too() {
    assert_snapshot!(TestEnv::new().run_with_input(["import", "-"], "version = 2\n"), @"
    exit: 1
    --- stderr
    error: `-` cannot be imported: the file has version 2, and this program reads version 1
    help: use a newer version of Mainstay
    ");
}
