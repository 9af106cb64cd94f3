//! What is accepted, what is refused, and what stays readable.

use std::time::Duration;

use super::*;

fn process() -> ProcessSpec {
    ProcessSpec {
        command: vec!["mcp-server-time".to_owned()],
        cwd: "/".into(),
        env: BTreeMap::from([("TOKEN".to_owned(), EnvVar::new("hush"))]),
        path: None,
        transport: Transport::Stdio,
    }
}

fn spec_of(workload: Workload) -> ServerSpec {
    ServerSpec {
        name: "time".parse().unwrap(),
        workload,
        restart: RestartPolicy::default(),
        proxy: ProxySettings::default(),
        clients: ClientSettings::default(),
    }
}

fn spec() -> ServerSpec {
    spec_of(Workload::Process(process()))
}

fn remote() -> ServerSpec {
    let authorization = ("authorization".parse().unwrap(), "Bearer hush".parse().unwrap());
    spec_of(Workload::Remote(RemoteSpec {
        url: "https://example.com/mcp".parse().unwrap(),
        headers: BTreeMap::from([authorization]),
        variables: BTreeMap::new(),
    }))
}

fn http(port: u16, path: &str) -> ServerSpec {
    let transport = Transport::StreamableHttp { port, path: path.to_owned() };
    spec_of(Workload::Process(ProcessSpec { transport, ..process() }))
}

fn check(change: impl FnOnce(&mut ProcessSpec), expected: &str) {
    let mut process = process();
    change(&mut process);
    let spec = spec_of(Workload::Process(process));
    assert_eq!(spec.validate().unwrap_err().to_string(), expected);
}

#[test]
fn a_good_spec_passes_and_survives_json() {
    for spec in [spec(), http(8_080, "/mcp"), remote()] {
        spec.validate().unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ServerSpec>(&json).unwrap(), spec);
    }
}

#[test]
fn a_spec_of_the_first_form_is_read_as_it_was_meant() {
    let stored = |transport: &str| {
        let json = format!(
            r#"{{"name":"time","workload":{{"process":{{"command":["mcp-server-time"],"cwd":"/",
                "env":{{"TOKEN":"hush"}}}}}},{transport}"restart":{{"max":10}}}}"#
        );
        serde_json::from_str::<ServerSpec>(&json).unwrap()
    };
    assert_eq!(stored(r#""transport":"stdio","#), spec());
    assert_eq!(stored(""), spec());
    let web = r#""transport":{"streamable-http":{"port":8080,"path":"/mcp"}},"#;
    assert_eq!(stored(web), http(8_080, "/mcp"));
}

#[test]
fn a_server_elsewhere_has_no_transport_of_its_own() {
    let json = r#"{"name":"a","workload":{"remote":{"url":"http://h/"}},"transport":"stdio"}"#;
    let error = serde_json::from_str::<ServerSpec>(json).unwrap_err().to_string();
    assert!(error.starts_with("server `a` is not a process"), "{error}");
    let remote = remote().workload;
    assert_eq!((remote.engine(), remote.transport()), ("remote", "streamable-http"));
    assert_eq!(remote.local_transport(), None);
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    for spec in [spec(), remote()] {
        assert!(!format!("{spec:?}").contains("hush"));
    }
}

#[test]
fn what_the_proxy_cannot_do_is_refused_with_the_servers_name() {
    let mut spec = remote();
    spec.proxy.isolate = true;
    let expected = "server `time`: only a server that speaks stdio can be isolated";
    assert_eq!(spec.validate().unwrap_err().to_string(), expected);
}

#[test]
fn what_cannot_run_is_refused_with_a_reason() {
    check(|p| p.command.clear(), "server `time` has no command: give one after `--`");
    check(
        |p| p.cwd = "here".into(),
        "the working directory `here` of server `time` is not an absolute path",
    );
    check(
        |p| p.command.push("a\0b".to_owned()),
        "the command of server `time` contains a NUL byte",
    );
    check(
        |p| {
            p.env.insert("A=B".to_owned(), EnvVar::new("x"));
        },
        "`A=B` of server `time` is not the name of an environment variable",
    );
    check(
        |p| p.transport = Transport::StreamableHttp { port: 80, path: "mcp".to_owned() },
        "server `time`: the path `mcp` must begin with `/`",
    );
}

#[test]
fn a_path_is_one_that_a_url_can_carry() {
    let with = |path: &str| http(80, path);
    for path in ["/", "/mcp", "/a/b-c_d.e~f", "/v1:x@y/%20;a=b,c", "//"] {
        with(path).validate().unwrap();
    }
    for (path, shown) in [
        ("/a b", "`/a b` contains ' '"),
        ("/a\"b", "`/a\\\"b` contains '\"'"),
        ("/a'b", "`/a\\'b` contains '\\''"),
        ("/<a>", "`/<a>` contains '<'"),
        ("/a>", "`/a>` contains '>'"),
        ("/a#b", "`/a#b` contains '#'"),
        ("/a?b=c", "`/a?b=c` contains '?'"),
        ("/a\r\n", "`/a\\r\\n` contains '\\r'"),
        ("/ä", "`/ä` contains 'ä'"),
    ] {
        let error = with(path).validate().unwrap_err().to_string();
        let expected = format!("server `time`: the path {shown}, which the path of a URL cannot");
        assert_eq!(error, expected);
    }
}

#[test]
fn every_duration_has_a_limit_and_a_start_takes_time() {
    type Field = fn(&mut RestartPolicy) -> &mut Duration;
    let with = |change: &dyn Fn(&mut RestartPolicy)| {
        let mut spec = spec();
        change(&mut spec.restart);
        spec.validate().map_err(|error| error.to_string())
    };
    let fields: [(&str, Field); 4] = [
        ("initial", |policy| &mut policy.initial),
        ("cap", |policy| &mut policy.cap),
        ("stable-after", |policy| &mut policy.stable_after),
        ("start-timeout", |policy| &mut policy.start_timeout),
    ];
    let longest = humantime::parse_duration("10years").unwrap();
    for (name, field) in fields {
        assert_eq!(with(&|policy| *field(policy) = longest), Ok(()));
        let refused = format!("`restart.{name}` of server `time` is longer than 10 years");
        let longer = longest + Duration::from_nanos(1);
        assert_eq!(with(&|policy| *field(policy) = longer), Err(refused));
    }
    assert_eq!(with(&|policy| policy.stop_timeout = LONGEST_STOP_TIMEOUT), Ok(()));
    assert_eq!(
        with(&|policy| policy.stop_timeout = LONGEST_STOP_TIMEOUT + Duration::from_nanos(1)),
        Err("`restart.stop-timeout` of server `time` is too long: give at most 90s".to_owned())
    );
    for limit in [None, Some(Duration::from_secs(1)), Some(longest)] {
        assert_eq!(with(&|policy| policy.hang_after = limit), Ok(()));
    }
    assert_eq!(
        with(&|policy| policy.block_limit = Some(Duration::from_millis(999))),
        Err("`restart.block-limit` of server `time` is too short: give at least 1s".to_owned())
    );
    assert_eq!(
        with(&|policy| policy.busy_limit = Some(longest * 2)),
        Err("`restart.busy-limit` of server `time` is longer than 10 years".to_owned())
    );
    assert_eq!(
        with(&|policy| policy.start_timeout = Duration::ZERO),
        Err("`restart.start-timeout` of server `time` must be above zero".to_owned())
    );
}

#[test]
fn time_limits_can_be_lifted() {
    let policy: RestartPolicy =
        serde_json::from_str(r#"{"hang_after":"never","busy_limit":"2m"}"#).unwrap();
    let minutes = |n: u64| Some(Duration::from_secs(60 * n));
    assert_eq!(
        (policy.hang_after, policy.busy_limit, policy.block_limit),
        (None, minutes(2), minutes(15))
    );
    let text = serde_json::to_string(&policy).unwrap();
    assert!(
        text.contains(r#""hang_after":"never","busy_limit":"2m","block_limit":"15m""#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<RestartPolicy>(&text).unwrap(), policy);
}
