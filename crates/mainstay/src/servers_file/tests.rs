use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use mainstay_core::{
    ClientSettings, ContainerSpec, EngineKind, EnvVar, Limits, OnStop, ProcessSpec, ProxySettings,
    RefreshMode, RemoteSpec, RestartPolicy, StableFrom, TimeLimit, Transport, Workload,
};

use super::*;

fn caller() -> Caller {
    let env = [
        ("PATH", "/bin"),
        ("TOKEN", "hush"),
        ("odd name", "x"),
        ("DOCS_AUTHORIZATION", "Bearer hush"),
    ];
    Caller { env: env.map(|(k, v)| (k.into(), v.into())).into(), cwd: Some("/project".into()) }
}

fn specs() -> Vec<ServerSpec> {
    let plain = ServerSpec {
        name: "time".parse().unwrap(),
        workload: Workload::Process(ProcessSpec {
            command: vec!["uvx".to_owned(), "say \"hi\"\n".to_owned()],
            cwd: "/home/me".into(),
            env: BTreeMap::from([
                ("TOKEN".to_owned(), EnvVar::new("hush")),
                ("odd name".to_owned(), EnvVar::new("x")),
            ]),
            path: Some("/bin".to_owned()),
            transport: Transport::Stdio,
        }),
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        clients: ClientSettings::default(),
    };
    let web = ServerSpec {
        name: "web".parse().unwrap(),
        restart: RestartPolicy {
            max: 3,
            initial: Duration::from_millis(1_500),
            cap: Duration::from_secs(90),
            stable_after: Duration::ZERO,
            stable_from: StableFrom::Start,
            on_stop: OnStop::Respect,
            start_timeout: Duration::from_secs(1),
            stop_timeout: Duration::from_secs(80),
            hang_after: None,
            busy_limit: Some(Duration::from_secs(600)),
            block_limit: None,
        },
        workload: Workload::Process(ProcessSpec {
            command: vec!["serve".to_owned()],
            cwd: "/".into(),
            env: BTreeMap::new(),
            path: Some("/bin".to_owned()),
            transport: Transport::StreamableHttp { port: 8_080, path: "/x".to_owned() },
        }),
        proxy: ProxySettings {
            hold: Duration::ZERO,
            call_timeout: Some(Duration::from_secs(300)),
            tool_timeouts: [
                ("convert".to_owned(), TimeLimit(Some(Duration::from_secs(30)))),
                ("watch".to_owned(), TimeLimit(None)),
            ]
            .into(),
            replay: ["convert", "say \"hi\""].map(str::to_owned).into(),
            port: Some(9_000),
            quiet_restart: true,
            late_results: false,
            ..ProxySettings::default()
        },
        clients: ClientSettings {
            only: Some(["cursor", "zed"].map(str::to_owned).into()),
            refresh: Some(RefreshMode::Always),
        },
    };
    let docs = ServerSpec {
        name: "docs".parse().unwrap(),
        workload: Workload::Remote(RemoteSpec {
            url: "https://example.com/mcp?team=a".parse().unwrap(),
            headers: BTreeMap::from([(
                "authorization".parse().unwrap(),
                "Bearer hush".parse().unwrap(),
            )]),
            variables: BTreeMap::from([(
                "authorization".parse().unwrap(),
                "DOCS_AUTHORIZATION".to_owned(),
            )]),
        }),
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        clients: ClientSettings { only: Some(BTreeSet::new()), refresh: None },
    };
    let notes = ServerSpec {
        name: "notes".parse().unwrap(),
        workload: Workload::Container(ContainerSpec {
            image: "mcp/filesystem".parse().unwrap(),
            args: vec!["/notes".to_owned()],
            engine: Some(EngineKind::Podman),
            host: Some("unix:///run/podman/podman.sock".to_owned()),
            env: BTreeMap::from([("TOKEN".to_owned(), EnvVar::new("hush"))]),
            volumes: vec!["/home/me/notes:/notes:ro".parse().unwrap()],
            network: Some("host".to_owned()),
            user: Some("1000".to_owned()),
            limits: Limits {
                memory: Some(2 << 30),
                pids: None,
                cap_add: ["CHOWN", "NET_ADMIN"].map(str::to_owned).into(),
                new_privileges: true,
                read_only: true,
                init: false,
            },
            transport: Transport::StreamableHttp { port: 8_000, path: "/mcp".to_owned() },
        }),
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        clients: ClientSettings::default(),
    };
    vec![docs, notes, plain, web]
}

#[test]
fn an_export_is_reviewable_and_holds_no_secret() {
    insta::assert_snapshot!(write(&specs()), @r#"
    version = 1

    [servers.docs]
    url = "https://example.com/mcp?team=HIDDEN-BY-MAINSTAY"
    headers.authorization = { from-env = "DOCS_AUTHORIZATION" }
    clients = []

    [servers.notes]
    image = "mcp/filesystem:latest"
    args = ["/notes"]
    engine = "podman"
    host = "unix:///run/podman/podman.sock"
    volumes = ["/home/me/notes:/notes:ro"]
    network = "host"
    user = "1000"
    transport = "streamable-http"
    target-port = 8000
    env.TOKEN = { from-env = "TOKEN" }
    limits.memory = "2g"
    limits.pids = "none"
    limits.cap-add = ["CHOWN", "NET_ADMIN"]
    limits.new-privileges = true
    limits.read-only = true
    limits.init = false

    [servers.time]
    command = ["uvx", """
    say "hi"
    """]
    cwd = "/home/me"
    env.TOKEN = { from-env = "TOKEN" }
    env."odd name" = { from-env = "odd name" }

    [servers.web]
    command = ["serve"]
    cwd = "/"
    transport = "streamable-http"
    target-port = 8080
    path = "/x"
    clients = ["cursor", "zed"]
    refresh = "always"
    proxy.hold = "0s"
    proxy.call-timeout = "5m"
    proxy.tool-timeouts = { convert = "30s", watch = "never" }
    proxy.replay = ["convert", 'say "hi"']
    proxy.port = 9000
    proxy.quiet-restart = true
    proxy.late-results = false
    restart.max = 3
    restart.initial = "1s 500ms"
    restart.cap = "1m 30s"
    restart.stable-after = "0s"
    restart.stable-from = "start"
    restart.on-stop = "respect"
    restart.start-timeout = "1s"
    restart.stop-timeout = "1m 20s"
    restart.hang-after = "never"
    restart.busy-limit = "10m"
    restart.block-limit = "never"
    "#);
    assert_eq!(write(&[]), "version = 1\n");
}

#[test]
fn an_export_imports_as_the_same_servers() {
    let text = write(&specs());
    let error = read(&text, &caller(), &[]).unwrap_err().to_string();
    assert!(error.contains("replace HIDDEN-BY-MAINSTAY with the values"), "{error}");
    assert_eq!(read(&text.replace("HIDDEN-BY-MAINSTAY", "a"), &caller(), &[]).unwrap(), specs());
    assert_eq!(read("version = 1\n", &caller(), &[]).unwrap(), []);
}

#[test]
fn a_replacement_keeps_values_that_the_file_leaves_out() {
    let mut specs = specs();
    let no_variables = Caller { env: Vec::new(), cwd: Some("/project".into()) };
    assert_eq!(read(&write(&specs), &no_variables, &specs).unwrap(), specs);
    assert!(read(&write(&specs), &no_variables, &[]).is_err());

    let remote = specs.iter_mut().find_map(|spec| match &mut spec.workload {
        Workload::Remote(remote) => Some(remote),
        Workload::Process(_) | Workload::Container(_) => None,
    });
    let elsewhere = "https://example.org/mcp".parse().unwrap();
    remote.unwrap().url = elsewhere;
    let error = read(&write(&specs), &no_variables, &self::specs()).unwrap_err().to_string();
    assert!(error.ends_with("not set in your environment: DOCS_AUTHORIZATION"), "{error}");
}

#[test]
fn a_header_keeps_the_name_of_its_variable() {
    let text = "version = 1\n\n[servers.crm]\nurl = \"https://h/mcp\"\n\
                headers.authorization = { from-env = \"TOKEN\" }\n";
    assert_eq!(write(&read(text, &caller(), &[]).unwrap()), text);
}

#[test]
fn a_minimal_server_gets_the_defaults() {
    let text = "version = 1\n[servers.a]\ncommand = ['x']\nenv.A = 'literal'\n";
    let specs = read(text, &caller(), &[]).unwrap();
    let Workload::Process(process) = &specs[0].workload else { panic!("{specs:?}") };
    assert_eq!(process.cwd, PathBuf::from("/project"));
    assert_eq!(process.env["A"].reveal(), "literal");
    assert_eq!(specs[0].restart, RestartPolicy::default());
    assert_eq!(specs[0].proxy, ProxySettings::default());
}

#[test]
fn a_minimal_container_gets_strict_limits() {
    let text = "version = 1\n[servers.a]\nimage = 'x'\nlimits.pids = 9\n\
                limits.cap-add = ['cap_chown']\n";
    let mut specs = read(text, &caller(), &[]).unwrap();
    let Workload::Container(container) = &mut specs[0].workload else { panic!("{specs:?}") };
    let expected =
        Limits { pids: Some(9), cap_add: ["CHOWN".to_owned()].into(), ..Limits::default() };
    assert_eq!((&container.limits, &container.host), (&expected, &None));
    container.host = Some("unix:///var/run/docker.sock".to_owned());
    let written = write(&specs);
    assert!(!written.contains("host"), "{written}");
    assert!(written.contains("image = \"x:latest\"\nlimits.pids = 9\n"), "{written}");
}

#[test]
fn servers_never_share_the_variable_of_a_header() {
    let variable = |server: &str, header: &str| {
        write::header_variable(&server.parse().unwrap(), &header.parse().unwrap())
    };
    assert_eq!(variable("my-docs", "x-api-key"), "MY_DOCS_X_API_KEY");
    assert_eq!(variable("1st", "authorization"), "_1ST_AUTHORIZATION");
}

fn error(text: &str) -> String {
    read(text, &caller(), &[]).unwrap_err().to_string()
}

#[test]
fn errors_name_line_and_column() {
    insta::assert_snapshot!(error("version = 1\n[servers.a]\ncommand = ['x']\nshape = 1\n"), @"
    TOML parse error at line 4, column 1
      |
    4 | shape = 1
      | ^^^^^
    unknown field `shape`, expected one of `command`, `image`, `url`, `headers`, `cwd`, `args`, `engine`, `host`, `volumes`, `network`, `user`, `transport`, `target-port`, `path`, `env`, `limits`, `clients`, `refresh`, `proxy`, `restart`
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.Bad_Name]\ncommand = ['x']\n"), @"
    TOML parse error at line 2, column 10
      |
    2 | [servers.Bad_Name]
      |          ^^^^^^^^
    `Bad_Name` is not a valid server name: use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.a]\ncommand = ['x']\nenv.A = 1\n"), @r#"
    TOML parse error at line 4, column 9
      |
    4 | env.A = 1
      |         ^
    expected a string or `{ from-env = "NAME" }`
    "#);
    insta::assert_snapshot!(error("version = 1\n[servers.a]\ncommand = ['x']\nrestart.cap = 'x'\n"), @"
    TOML parse error at line 4, column 15
      |
    4 | restart.cap = 'x'
      |               ^^^
    write a duration with its unit, as `45s` or `2m`
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.a]\nimage = 'x'\nlimits.pids = -1\n"), @r#"
    TOML parse error at line 4, column 15
      |
    4 | limits.pids = -1
      |               ^^
    write a number, or `none` for no limit
    "#);
    insta::assert_snapshot!(error("version = 1\n[servers.a]\nimage = 'x'\nvolumes = ['./a:/b']\n"), @"
    TOML parse error at line 4, column 11
      |
    4 | volumes = ['./a:/b']
      |           ^^^^^^^^^^
    its source must be an absolute path or the name of a volume
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.a]\ncommand = ['x']\nclients = ['curser']\n"), @"
    TOML parse error at line 4, column 11
      |
    4 | clients = ['curser']
      |           ^^^^^^^^^^
    there is no client `curser`: `mainstay client ls -a` lists all of them
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.a]\ncommand = ['x']\nrefresh = 'often'\n"), @"
    TOML parse error at line 4, column 11
      |
    4 | refresh = 'often'
      |           ^^^^^^^
    unknown variant `often`, expected one of `auto`, `always`, `never`
    ");
    insta::assert_snapshot!(error("version = 1\n[servers.a\n"), @"
    TOML parse error at line 2, column 11
      |
    2 | [servers.a
      |           ^
    unclosed table, expected `]`
    ");
    insta::assert_snapshot!(error("[servers.a]\n"), @"
    TOML parse error at line 1, column 1
      |
    1 | [servers.a]
      | ^
    missing field `version`
    ");
}

#[test]
fn invalid_servers_are_refused() {
    let check = |lines: &str, expected: &str| {
        assert_eq!(error(&format!("version = 1\n[servers.a]\n{lines}")), expected);
    };
    check("command = []", "server `a` has no command: give one after `--`");
    check(
        "command = ['x']\ncwd = 'rel'",
        "the working directory `rel` of server `a` is not an absolute path",
    );
    check(
        "command = ['x']\ntransport = 'streamable-http'",
        "server `a`: `transport = \"streamable-http\"` needs a `target-port`",
    );
    check("cwd = '/'", "server `a`: it has no `command`, `image` or `url`");
    check("command = ['x']\nimage = 'x'", "server `a`: it has both a `command` and an `image`");
    check("image = 'x'\nurl = 'http://h/'", "server `a`: it has both an `image` and a `url`");
    check("image = 'x'\ncwd = '/'", "server `a`: `cwd` needs a `command`");
    check("image = 'x'\nheaders.a = 'b'", "server `a`: `headers` need a `url`");
    for line in ["args = ['a']", "network = 'host'", "limits.memory = 'none'"] {
        let problem = "server `a`: `args`, `engine`, `host`, `volumes`, `network`, `user` and \
                       `limits` need an `image`";
        check(&format!("command = ['x']\n{line}"), problem);
        check(&format!("url = 'http://h/'\n{line}"), problem);
    }
    check(
        "image = 'x'\nlimits.memory = '1m'",
        "`limits.memory` of server `a` is too low: give at least 6 MiB",
    );
    check("command = ['x']\nurl = 'http://h/'", "server `a`: it has both a `command` and a `url`");
    check(
        "url = 'http://h/'\npath = '/mcp'",
        "server `a`: `cwd`, `target-port`, `path`, `env` and `stdio` need a `command`",
    );
    check("command = ['x']\nheaders.a = 'b'", "server `a`: `headers` need a `url`");
    check(
        "url = 'http://h/'\nheaders.a = \"b\\nc\"",
        "server `a`: `headers.a`: the value of a header is one line of ASCII text",
    );
    check(
        "url = 'http://h/'\nproxy.isolate = true",
        "server `a`: only a server that speaks stdio can be isolated",
    );
    check(
        "command = ['x']\npath = '/mcp'",
        "server `a`: `target-port` and `path` need `transport = \"streamable-http\"`",
    );
}

#[test]
fn all_unset_variables_are_reported_at_once() {
    let text = "version = 1\n\
                [servers.a]\ncommand = ['x']\nenv.A = { from-env = 'ONE' }\n\
                [servers.b]\ncommand = ['x']\nenv.B = { from-env = 'TWO' }\n\
                env.C = { from-env = 'ONE' }\n";
    assert_eq!(error(text), "these variables are not set in your environment: ONE, TWO");
}

#[test]
fn a_newer_file_is_refused_as_such() {
    assert_eq!(
        error("version = 2\n[servers.a]\nnew = true\n"),
        "the file has version 2, and this program reads version 1"
    );
}
