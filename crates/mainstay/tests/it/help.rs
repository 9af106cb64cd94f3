//! What the program says about itself.

use insta::assert_snapshot;

use crate::env::TestEnv;

#[test]
fn the_whole_help() {
    assert_snapshot!(TestEnv::new().run(["--help"]), @"
    exit: 0
    --- stdout
    Mainstay keeps MCP servers alive for AI clients.

      mainstay run time -- uvx mcp-server-time

    runs a server from now on; kill it, and it is back. `mainstay why time` tells what happened.

    Usage: mainstay <COMMAND>

    Servers:
      run          Run an MCP server, now and from now on
      ls           List servers
      status       Show everything about one server
      why          Tell what happened to a server, why, and what happens next
      start        Turn servers on
      stop         Turn servers off; they stay known
      restart      Start servers anew, with a clean slate
      rm           Stop servers and forget them

    Output and tools:
      logs         Print what servers wrote to standard error
      events       Print what happened, oldest first
      tools        List the tools that a server offers, or show one with its parameters
      call         Call a tool of a server and print its result
      connect      Speak MCP with a server over standard input and output

    Clients:
      client       Choose the AI clients that get your servers
      token        Let others call your servers over HTTP

    Files:
      export       Print servers as one reviewable TOML file
      import       Run the servers of a TOML file, all or none

    Mainstay itself:
      daemon       Run, inspect, replace or stop the daemon
      service      Have Mainstay started when you log in, or at boot
      update       Put another version in the place of this one
      doctor       Look for problems, and say what to do about them
      completions  Print a script that completes commands, servers, tools and clients in your shell
      demo         Watch a server die without its client noticing

    Options:
      -h, --help     Print help; see `mainstay COMMAND --help`
      -V, --version  Print the version

    Exit codes: 0 done, 1 failed, 2 usage, 3 no such server, 4 daemon unreachable, 130 interrupted
    ");
}

#[test]
fn no_command_prints_the_help_as_an_error() {
    let env = TestEnv::new();
    let output = env.run::<&str>([]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert_eq!(output.stderr, env.run(["--help"]).stdout);
}

#[test]
fn the_help_of_run() {
    assert_snapshot!(TestEnv::new().run(["run", "-h"]), @"
    exit: 0
    --- stdout
    Run an MCP server, now and from now on

    Usage: mainstay run [OPTIONS] <NAME> -- <COMMAND>...
           mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]
           mainstay run [OPTIONS] <NAME> --url <URL>

    Arguments:
      <NAME>        Name of the server: lower-case letters, digits and hyphens
      [COMMAND]...  The program and its arguments; with --image, arguments for its entry point

    Options:
          --transport <TRANSPORT>  How it speaks MCP [default: stdio] [possible values: stdio,
                                   streamable-http]
          --target-port <PORT>     The port it listens on, with streamable-http; of a container, the one
                                   inside
      -e, --env <KEY[=VALUE]>      Give it a variable (other users may see the value); without a value,
                                   the one of your environment
          --env-file <FILE>        Give it the variables of a file of KEY=VALUE lines
          --cwd <DIR>              Where it runs [default: the current directory]
          --replace                Change a server of that name: what is not given stays as it is, the
                                   command included, and `--isolate=false` turns a switch off
          --wait                   Wait until it is ready or has failed once, as on a terminal
          --json                   Print JSON
      -h, --help                   Print help (see more with '--help')

    Containers:
          --image <IMAGE>                Run it in a container of this image, which is pulled if it is
                                         not there
      -v, --volume <SOURCE:TARGET[:ro]>  Let it see a directory, a file or a named volume

    Servers that run elsewhere:
          --url <URL>                  Where it is reached, with streamable HTTP
          --header-env <KEY=VARIABLE>  Send it a header whose value is that of a variable of your
                                       environment

    Clients:
          --client <ID>       Register it with this client only (repeatable) [default: with those of
                              `mainstay client add`]
          --hold <TIME>       How long a request may wait while it is down; 0s for not at all [default:
                              45s]
          --isolate[=<BOOL>]  Give each session a process of its own, with stdio

    Restarts:
          --restart-max <N>      Restarts in a row before it is given up [default: 10]
          --no-restart[=<BOOL>]  Never start it again
    ");
    let all = TestEnv::new().run(["run", "--help"]).stdout;
    for rare in ["--reset", "--memory", "--isolate-idle", "--stable-after", "--header <"] {
        assert!(all.contains(rare), "{rare} is missing in:\n{all}");
    }
}

#[test]
fn the_help_of_daemon_stop_tells_what_becomes_of_the_servers() {
    assert_snapshot!(TestEnv::new().run(["daemon", "stop", "--help"]), @"
    exit: 0
    --- stdout
    Stop the daemon and its servers

    The servers end with it. It stays stopped, whatever clients ask for, until `mainstay daemon start`,
    `run`, `start`, `restart` or `import`, or until you log in (with `mainstay service install`) or
    reboot.

    Usage: mainstay daemon stop [OPTIONS]

    Options:
          --keep-servers
              Leave the servers running, for the next daemon to take over

      -h, --help
              Print help (see a summary with '-h')
    ");
}

#[test]
fn the_help_of_client() {
    assert_snapshot!(TestEnv::new().run(["client", "--help"]), @"
    exit: 0
    --- stdout
    Choose the AI clients that get your servers

    A client that was added once has an entry for every server from then on: in its own config file, of
    which nothing else is changed. An entry of yours is never touched.

    Usage: mainstay client <COMMAND>

    Commands:
      ls      List the clients you have, and how many of your servers each of them has [alias: list]
      add     Register all servers with clients, now and from now on
      remove  Take all our entries out of clients' files [alias: rm]
      show    Show one client, its file and the entries in it

    Options:
      -h, --help
              Print help (see a summary with '-h')
    ");
    assert_snapshot!(TestEnv::new().run(["client", "add", "-h"]), @"
    exit: 0
    --- stdout
    Register all servers with clients, now and from now on

    Usage: mainstay client add [OPTIONS] <ID|--all>

    Arguments:
      [ID]...  Ids of clients; `mainstay client ls -a` lists all of them

    Options:
          --all   All clients that are installed
          --json  Print JSON
      -h, --help  Print help (see more with '--help')
    ");
}

#[test]
fn the_version() {
    let output = TestEnv::new().run(["--version"]);
    assert_eq!(output.stdout, format!("mainstay {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_shell_has_a_script_for_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = TestEnv::new().run(["completions", shell]);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        assert!(output.stdout.contains("MAINSTAY_COMPLETE"), "{shell}");
    }
}
