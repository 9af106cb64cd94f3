use std::time::Duration;

use clap::Parser;
use mainstay_core::{OnStop, RefreshMode, StableFrom};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// The server that a command line describes.
pub(crate) fn spec(line: &str) -> Result<ServerSpec, String> {
    let words = std::iter::once("run").chain(line.split(' '));
    let Line { args } = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    described(&args).map_err(|error| error.to_string())
}

/// The server that results from these arguments with `--replace`.
fn replaced(old: &ServerSpec, line: &str) -> Result<ServerSpec, String> {
    let words = std::iter::once("run").chain(line.split(' '));
    let Line { args } = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    let env = [("PATH", "/elsewhere"), ("TOKEN", "new")];
    let env = env.map(|(k, v)| (k.into(), v.into())).into();
    let caller = Caller { env, cwd: Some("/other".into()) };
    spec_from(&args, &caller, Vec::new(), Some(old)).map_err(|error| error.to_string())
}

fn described(args: &Args) -> Result<ServerSpec, CliError> {
    let env = [("PATH", "/bin"), ("TOKEN", "hush"), ("HOME", "/home/me")];
    let env = env.map(|(k, v)| (k.into(), v.into())).into();
    let caller = Caller { env, cwd: Some("/project".into()) };
    let files = vec![("f.env".into(), "A=file\nB=file".to_owned())];
    spec_from(args, &caller, files, None)
}

/// The error for a command line that parses.
fn refused(line: &str) -> CliError {
    let words = std::iter::once("run").chain(line.split(' '));
    described(&Line::parse_from(words).args).unwrap_err()
}

fn process(spec: &ServerSpec) -> &ProcessSpec {
    match &spec.workload {
        Workload::Process(process) => process,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bare_command_gets_the_documented_defaults() {
    let spec = spec("time -- uvx mcp-server-time --utc").unwrap();
    assert_eq!(spec.name.as_str(), "time");
    assert_eq!(spec.restart, RestartPolicy::default());
    assert_eq!(spec.proxy, ProxySettings::default());
    let process = process(&spec);
    assert_eq!(process.transport, Transport::Stdio);
    assert_eq!(process.command, ["uvx", "mcp-server-time", "--utc"]);
    assert_eq!(process.cwd, Path::new("/project"));
    assert_eq!(process.path.as_deref(), Some("/bin"));
}

#[test]
fn every_option_is_stored() {
    let spec = spec(
        "web --transport streamable-http --target-port 8080 --path /x --cwd sub -e A=flag \
         -e TOKEN --restart-max 3 --restart-initial 1s --restart-cap 2m --stable-after 0s \
         --stable-from start --on-stop respect --start-timeout 4s --stop-timeout 5s --hang-after never \
         --busy-limit 10m --block-limit 1h -- serve",
    )
    .unwrap();
    let process = process(&spec);
    assert_eq!(process.transport, Transport::StreamableHttp { port: 8_080, path: "/x".to_owned() });
    assert_eq!(process.cwd, Path::new("/project/sub"));
    let env: Vec<_> =
        process.env.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
    assert_eq!(env, [("A", "flag"), ("B", "file"), ("TOKEN", "hush")]);
    let secs = Duration::from_secs;
    let expected = RestartPolicy {
        max: 3,
        initial: secs(1),
        cap: secs(120),
        stable_after: Duration::ZERO,
        stable_from: StableFrom::Start,
        on_stop: OnStop::Respect,
        start_timeout: secs(4),
        stop_timeout: secs(5),
        hang_after: None,
        busy_limit: Some(secs(600)),
        block_limit: Some(secs(3600)),
    };
    assert_eq!(spec.restart, expected);
}

#[test]
fn a_replacement_keeps_other_settings() {
    let olds = [
        "a -e TOKEN --cwd sub --restart-max 3 --stable-from start --on-stop respect --hold 1s --isolate \
         --replay x --port 9000 --quiet-restart --client zed --refresh never -- serve --fast",
        "a --transport streamable-http --target-port 80 --path /x --start-timeout 9s --hang-after never -- serve",
        "a --image web:1 --engine podman -v data:/data --network host --user 1 --memory 2g --pids-limit none \
         --cap-add CHOWN --allow-new-privileges --read-only --no-init -e TOKEN -- --fast",
        "a --url https://h/mcp --header X=1 --header-env Authorization=TOKEN",
    ];
    for line in olds {
        let old = spec(line).unwrap();
        assert_eq!(replaced(&old, "a").unwrap(), old, "{line}");
        let held = replaced(&old, "a --hold 7s").unwrap();
        let proxy = ProxySettings { hold: Duration::from_secs(7), ..old.proxy.clone() };
        assert_eq!(held, ServerSpec { proxy, ..old }, "{line}");
    }
}

#[test]
fn a_replacement_changes_given_settings() {
    let old =
        spec("a -e TOKEN --transport streamable-http --target-port 80 --path /x -- serve").unwrap();
    let new = replaced(&old, "a -e TOKEN -e C=3 --target-port 81 -- other").unwrap();
    let new = process(&new);
    assert_eq!(
        (&*new.command, new.cwd.as_path()),
        (&["other".to_owned()][..], Path::new("/project"))
    );
    assert_eq!(new.path.as_deref(), Some("/elsewhere"), "another command is looked for now");
    assert_eq!(new.transport, Transport::StreamableHttp { port: 81, path: "/x".to_owned() });
    let env: Vec<_> = new.env.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
    assert_eq!(env, [("A", "file"), ("B", "file"), ("C", "3"), ("TOKEN", "new")]);
    let stdio = replaced(&old, "a --transport stdio").unwrap();
    assert_eq!(process(&stdio).transport, Transport::Stdio);
    let far = replaced(&old, "a --url http://h/").unwrap();
    assert!(matches!(far.workload, Workload::Remote(_)), "{far:?}");
    let wrong = replaced(&old, "a --isolate-idle 1m").unwrap_err();
    assert_eq!(wrong, "--isolate-idle is for servers with --isolate");
}

#[test]
fn proxy_settings_are_stored() {
    let spec = spec(
        "a --hold 0s --isolate --isolate-idle 5m --replay b --replay a --port 9000 \
              --call-timeout scan=30s --call-timeout a=b=never --call-timeout 5m \
              --quiet-restart --no-late-results -- x",
    )
    .unwrap();
    let expected = ProxySettings {
        hold: Duration::ZERO,
        isolate: true,
        isolate_idle: Duration::from_secs(300),
        call_timeout: Some(Duration::from_secs(300)),
        tool_timeouts: [
            ("scan".to_owned(), TimeLimit(Some(Duration::from_secs(30)))),
            ("a=b".to_owned(), TimeLimit(None)),
        ]
        .into(),
        replay: ["a", "b"].map(str::to_owned).into(),
        port: Some(9_000),
        quiet_restart: true,
        late_results: false,
    };
    assert_eq!(spec.proxy, expected);
}

#[test]
fn a_limit_is_given_once() {
    let check = |flags: &str, expected: &str| {
        let error = spec(&format!("a {flags} -- x")).unwrap_err();
        assert_eq!(error, format!("--call-timeout is given twice for {expected}"));
    };
    check("--call-timeout 5s --call-timeout 6s", "all tools");
    check("--call-timeout never --call-timeout x=1s --call-timeout never", "all tools");
    check("--call-timeout x=1s --call-timeout x=never", "`x`");
}

#[test]
fn clients_are_the_added_ones_unless_named() {
    let check = |flags: &str, only: Option<&[&str]>, refresh: Option<RefreshMode>| {
        let only = only.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        let spec = spec(format!("a {flags} -- x").trim()).unwrap();
        assert_eq!(spec.clients, ClientSettings { only, refresh });
    };
    check("--wait", None, None);
    check("--client zed --client cursor", Some(&["cursor", "zed"]), None);
    check("--no-clients --refresh never", Some(&[]), Some(RefreshMode::Never));
    check("--refresh always", None, Some(RefreshMode::Always));
    assert!(spec("a --no-clients --client zed -- x").is_err());
    assert!(spec("a --client word -- x").is_err());
}

#[test]
fn a_remote_server_gets_its_headers() {
    let line = "far --url https://example.com/mcp --header X-Team=a=b \
                --header-env Authorization=TOKEN --port 9000";
    let spec = spec(line).unwrap();
    let Workload::Remote(remote) = &spec.workload else { panic!("{spec:?}") };
    assert_eq!(remote.url.as_str(), "https://example.com/mcp");
    let headers: Vec<_> =
        remote.headers.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
    assert_eq!(headers, [("authorization", "hush"), ("x-team", "a=b")]);
}

#[test]
fn conflicting_options_are_refused() {
    let check = |line: &str, expected: &str| {
        let error = spec(line).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check("a", "there is nothing to run");
    check("a --url http://h/ -- x", "either a command or a --url");
    for flag in ["--transport stdio", "--target-port 80", "--path /x", "-e A=1", "--cwd /"] {
        check(&format!("a --url http://h/ {flag}"), "for local servers");
    }
    spec("a --url http://h/ --transport streamable-http").unwrap();
    check("a --header A=1 -- x", "for remote servers");
    check("a --header-env A=TOKEN -- x", "for remote servers");
    check("a --isolate --url http://h/", "--isolate is for stdio servers");
    let http = "a --transport streamable-http --target-port 80";
    check(&format!("{http} --isolate -- x"), "--isolate is for stdio servers");
    check(&format!("{http} --port 80 -- x"), "port 80 is the server's own");
    check("a --port 0 -- x", "0 is not in 1..=65535");
    check("a --hold 11m -- x", "cannot be held longer than 10 minutes");
    check("a --url ftp://h/", "its scheme must be http or https");
    check("a --url http://h/ --header A", "--header: expected KEY=VALUE");
    check("a --url http://h/ --header Host=x", "the header `host` is set by Mainstay itself");
    check("a --url http://h/ --header A=1 --header a=2", "the header `a` is given twice");
    check("a --url http://h/ --header-env A", "--header-env A: expected KEY=VARIABLE");
    check("a --url http://h/ --header-env A=NONE", "the variable is not set");
}

#[test]
fn a_misplaced_argument_gets_a_hint() {
    let check = |line: &str, expected: &str| {
        let error = refused(line);
        assert_eq!(
            error.report().map(|text| anstream::adapter::strip_str(&text).to_string()),
            Some(expected.to_owned())
        );
    };
    check(
        "a mcp/time:1",
        "error: unexpected argument `mcp/time:1`\n\
         help: give an image with `--image`, or a command after `--`",
    );
    check(
        "a --image b echo hi",
        "error: unexpected argument `echo`\n\
         help: give the image with `--image`, and its arguments after `--`",
    );
    check(
        "a --url http://h/ b",
        "error: unexpected argument `b`\nhelp: leave it out: a --url needs no arguments",
    );
    check(
        "a b -- c",
        "error: unexpected argument `b`\n\
         help: give an image with `--image`, or a command after `--`",
    );
}

#[test]
fn no_restart_sets_the_maximum_to_zero() {
    assert_eq!(spec("a --no-restart -- x").unwrap().restart.max, 0);
    assert!(spec("a --no-restart --restart-max 3 -- x").is_err());
}

#[test]
fn http_flags_go_together() {
    let check = |line: &str, expected: &str| {
        let error = spec(line).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check("a --target-port 80 -- x", "are for HTTP servers");
    check("a --transport streamable-http -- x", "needs --target-port");
    check("a --transport streamable-http --target-port 0 -- x", "0 is not in 1..=65535");
    check(
        "a --transport streamable-http --target-port 1 --path mcp -- x",
        "server `a`: the path `mcp` must begin with `/`",
    );
}

#[test]
fn a_replacement_can_turn_a_switch_off() {
    let old = spec(
        "a --image web:1 --isolate --quiet-restart --allow-new-privileges --read-only --no-init --no-restart \
         --no-clients",
    )
    .unwrap();
    let off = "a --isolate=false --quiet-restart=false --allow-new-privileges=false --read-only=false \
               --no-init=false --no-restart=false --no-clients=false";
    let new = replaced(&old, off).unwrap();
    assert_eq!(
        ServerSpec { workload: old.workload.clone(), ..new.clone() }.proxy,
        ProxySettings::default()
    );
    assert_eq!(
        (&new.restart, &new.clients),
        (&RestartPolicy::default(), &ClientSettings::default())
    );
    let Workload::Container(container) = &new.workload else { panic!("{new:?}") };
    assert_eq!(container.limits, mainstay_core::Limits::default());
    let on = "a --isolate=true --quiet-restart --allow-new-privileges=true --read-only --no-init --no-restart=true \
              --no-clients";
    assert_eq!(replaced(&new, on).unwrap(), old);
    assert!(spec("a --isolate=maybe -- x").is_err());
    assert_eq!(process(&spec("a --isolate -- false").unwrap()).command, ["false"]);
}

#[test]
fn headers_are_not_sent_to_another_host_unless_they_are_given_again() {
    let old = spec("a --url https://h/mcp --header X=1 --header-env Authorization=TOKEN").unwrap();
    let same = replaced(&old, "a --url https://h/other").unwrap();
    let Workload::Remote(same) = &same.workload else { panic!("{same:?}") };
    assert_eq!(same.headers.len(), 2);
    for url in ["https://other/mcp", "http://h/mcp", "https://h:8443/mcp"] {
        let error = replaced(&old, &format!("a --url {url}")).unwrap_err();
        assert_eq!(error, "headers are not kept for another host", "{url}");
        let error = replaced(&old, &format!("a --url {url} --header X=2")).unwrap_err();
        assert_eq!(error, "headers are not kept for another host", "{url}");
        let all = format!("a --url {url} --header X=2 --header-env Authorization=TOKEN");
        let new = replaced(&old, &all).unwrap();
        let Workload::Remote(new) = &new.workload else { panic!("{new:?}") };
        let values: Vec<_> = new.headers.values().map(HeaderValue::reveal).collect();
        assert_eq!(values, ["new", "2"]);
    }
}
