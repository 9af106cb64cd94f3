//! Help, version, completions and man pages.

use insta::assert_snapshot;

use crate::env::TestEnv;

#[test]
fn the_whole_help() {
    assert_snapshot!(TestEnv::new().run(["--help"]), @"
    exit: 0
    --- stdout
    Mainstay keeps MCP servers running for AI clients.

      mainstay run time -- uvx mcp-server-time

    runs a server and restarts it when it ends. `mainstay why time` explains what happened.

    Usage: mainstay <COMMAND>

    Servers:
      run          Run an MCP server and keep it running
      ls           List servers
      status       Show everything about one server
      why          Explain what happened to a server, why, and what happens next
      start        Start servers
      stop         Stop servers, until `mainstay start`
      restart      Restart servers and reset their restart counters
      rm           Stop servers and remove them

    Output and tools:
      logs         Print the logs of servers
      events       Print events, oldest first
      tools        List the tools that a server offers, or show one with its parameters
      call         Call a tool of a server and print its result
      connect      Connect a stdio client to a server

    Clients:
      client       Choose the AI clients that get your servers
      token        Let others call your servers over HTTP

    Files:
      export       Print servers as a TOML file
      import       Add the servers of a TOML file, all or none

    Mainstay itself:
      daemon       Run, inspect, replace or stop the daemon
      service      Start Mainstay when you log in, or at boot
      update       Replace this program by another version
      doctor       Look for problems and suggest fixes
      completions  Print a script that completes commands, servers, tools and clients in your shell
      man          Write the man pages into a directory
      demo         Show that a client does not notice when its server is killed

    Options:
      -h, --help     Print help; `mainstay COMMAND --help` describes a command
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
    Run an MCP server and keep it running

    Usage: mainstay run [OPTIONS] <NAME> -- <COMMAND>...
           mainstay run [OPTIONS] <NAME> --image <IMAGE> [-- <ARG>...]
           mainstay run [OPTIONS] <NAME> --url <URL>

    Arguments:
      <NAME>        Name of the server: lower-case letters, digits and hyphens
      [COMMAND]...  The program and its arguments; with --image, arguments of the entry point

    Options:
          --transport <TRANSPORT>  Transport of the server [default: stdio] [possible values: stdio,
                                   streamable-http]
          --target-port <PORT>     Port it listens on, with streamable-http; for a container, the port
                                   inside
      -e, --env <KEY[=VALUE]>      Set a variable (other users may see the value); without a value, take
                                   it from your environment
          --env-file <FILE>        Set the variables of a file of KEY=VALUE lines
          --cwd <DIR>              Working directory [default: the current directory]
          --replace                Change the server of that name: options that you leave out keep their
                                   values, also the command; `--isolate=false` turns a switch off
          --wait                   Wait until it is ready or has failed once (always so on a terminal)
          --json                   Print JSON
      -h, --help                   Print help (see more with '--help')

    Containers:
          --image <IMAGE>                Run it in a container of this image, which is pulled if it is
                                         missing
      -v, --volume <SOURCE:TARGET[:ro]>  Mount a directory, a file or a named volume

    Remote servers:
          --url <URL>                  URL of its MCP endpoint (streamable HTTP)
          --header-env <KEY=VARIABLE>  Send a header whose value is taken from a variable of your
                                       environment

    Clients:
          --client <ID>       Add it to this client only (repeatable) [default: the clients of `mainstay
                              client add`]
          --hold <TIME>       How long requests wait while it is down; 0s fails them at once [default:
                              45s]
          --isolate[=<BOOL>]  Run a separate process for each session (stdio only)

    Restarts:
          --restart-max <N>      Restarts in a row before Mainstay gives up [default: 10]
          --no-restart[=<BOOL>]  Never restart it
    ");
    let all = TestEnv::new().run(["run", "--help"]).stdout;
    for rare in ["--reset", "--memory", "--isolate-idle", "--stable-after", "--header <"] {
        assert!(all.contains(rare), "{rare} is missing in:\n{all}");
    }
}

#[test]
fn the_help_of_daemon_stop() {
    assert_snapshot!(TestEnv::new().run(["daemon", "stop", "--help"]), @"
    exit: 0
    --- stdout
    Stop the daemon and its servers

    The servers end with it. It stays stopped, even if clients connect, until `mainstay daemon start`,
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

    A client that you add gets an entry for every server in its own config file, also for servers that
    you run later. Nothing else in the file is changed.

    Usage: mainstay client <COMMAND>

    Commands:
      ls      List installed clients, and how many of your servers each has [alias: list]
      add     Add all servers to clients, also those that you run later
      remove  Remove all entries of Mainstay from clients' files [alias: rm]
      show    Show one client, its file and the entries in it

    Options:
      -h, --help
              Print help (see a summary with '-h')
    ");
    assert_snapshot!(TestEnv::new().run(["client", "add", "-h"]), @"
    exit: 0
    --- stdout
    Add all servers to clients, also those that you run later

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

#[test]
fn every_command_has_a_man_page() {
    let env = TestEnv::new();
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man1");
    let output = env.run(["man", pages.to_str().unwrap()]);
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (0, "", ""));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    for text in [".TH mainstay 1", "mainstay\\-run(1)", "Exit codes: 0 done"] {
        assert!(page("mainstay.1").contains(text), "{text} is missing");
    }
    let run = page("mainstay-run.1");
    for text in ["Run an MCP server", "\\-\\-restart\\-max", "\\-\\-isolate\\-idle"] {
        assert!(run.contains(text), "{text} is missing in:\n{run}");
    }
    assert!(page("mainstay-client-add.1").contains("Add all servers to clients"));
    let hidden = std::fs::read_dir(&pages).unwrap().filter_map(Result::ok);
    let hidden: Vec<_> =
        hidden.filter(|page| page.file_name().to_string_lossy().contains("__")).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
    let file = pages.join("mainstay.1/pages");
    let output = env.run(["man", file.to_str().unwrap()]);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("cannot be written"), "{}", output.stderr);
}
