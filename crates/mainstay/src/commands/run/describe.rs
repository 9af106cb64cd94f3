//! From arguments to the server that they describe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mainstay_core::{
    ClientSettings, EnvVar, HeaderName, HeaderValue, OnStop, ProcessSpec, ProxySettings,
    RemoteSpec, RemoteUrl, RestartPolicy, ServerSpec, SpecError, StableFrom, Transport, Workload,
};

use super::args::{
    Args, ClientArgs, OnStopName, ProxyArgs, RemoteArgs, RestartArgs, StableFromName,
};
use super::container::{container_from, no_container, too_little_memory};
use crate::context::Caller;
use crate::environment;
use crate::error::CliError;
use crate::limits::Most;
use crate::transport::{Mismatch, TransportName};

/// The server that the arguments describe; the files of variables have been read already. What they leave out is as
/// `old` says, or else the default.
pub(super) fn spec_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&ServerSpec>,
) -> Result<ServerSpec, CliError> {
    no_stray(args)?;
    let workload = workload_from(args, caller, env_files, old.map(|old| &old.workload))?;
    let proxy = proxy_from(&args.proxy, old.map(|old| &old.proxy));
    if args.proxy.isolate_idle.is_some() && !proxy.isolate {
        return Err(misfit("--isolate-idle is for servers with --isolate", "add `--isolate`"));
    }
    if proxy.isolate && workload.local_transport() != Some(&Transport::Stdio) {
        return Err(misfit(
            "--isolate is for servers that speak stdio",
            "leave it out: a server that speaks HTTP tells its sessions apart itself",
        ));
    }
    let spec = ServerSpec {
        name: args.name.clone(),
        workload,
        restart: policy_from(&args.restart, old.map(|old| &old.restart)),
        proxy,
        clients: clients_from(&args.clients, old.map(|old| &old.clients)),
    };
    match (spec.validate(), args.container.memory) {
        (Ok(()), _) => Ok(spec),
        (Err(SpecError::TooLow { field: "memory", .. }), Some(Most(Some(limit)))) => {
            Err(too_little_memory(limit))
        }
        (Err(error), _) => Err(CliError::usage(error.to_string())),
    }
}

/// What is run. Without a command, an image and a URL, that stays as it is.
fn workload_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&Workload>,
) -> Result<Workload, CliError> {
    let is_unnamed = args.command.is_empty();
    match (&args.remote.url, &args.container.image, old) {
        (Some(_), Some(_), _) => Err(misfit(
            "a server either runs in a container or is reached at a --url",
            "leave out one of the two",
        )),
        (Some(url), None, Some(Workload::Remote(old))) => {
            Ok(Workload::Remote(remote_from(args, url, caller, Some(old))?))
        }
        (Some(url), None, _) => Ok(Workload::Remote(remote_from(args, url, caller, None)?)),
        (None, None, Some(Workload::Remote(old))) if is_unnamed => {
            Ok(Workload::Remote(remote_from(args, &old.url, caller, Some(old))?))
        }
        (None, Some(image), Some(Workload::Container(old))) => {
            Ok(Workload::Container(container_from(args, image, caller, env_files, Some(old))?))
        }
        (None, Some(image), _) => {
            Ok(Workload::Container(container_from(args, image, caller, env_files, None)?))
        }
        (None, None, Some(Workload::Container(old))) if is_unnamed => {
            Ok(Workload::Container(container_from(args, &old.image, caller, env_files, Some(old))?))
        }
        (None, None, Some(Workload::Process(old))) => {
            Ok(Workload::Process(process_from(args, caller, env_files, Some(old))?))
        }
        (None, None, _) => Ok(Workload::Process(process_from(args, caller, env_files, None)?)),
    }
}

/// Refuses words that are neither a flag's nor after `--`, and tells where they belong.
fn no_stray(args: &Args) -> Result<(), CliError> {
    let Some(word) = args.stray.first() else { return Ok(()) };
    let help = match (&args.container.image, &args.remote.url) {
        (Some(_), _) => "an image is given with `--image`; its arguments follow after `--`",
        (None, Some(_)) => "leave it out: the --url says everything",
        (None, None) => "an image is given with `--image`, a command after `--`",
    };
    Err(misfit(&format!("unexpected argument `{word}`"), help))
}

fn process_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&ProcessSpec>,
) -> Result<ProcessSpec, CliError> {
    no_container(&args.container)?;
    let same = old.filter(|old| args.command.is_empty() || args.command == old.command);
    let command = same.map_or(&args.command, |old| &old.command).clone();
    if command.is_empty() {
        return Err(misfit(
            "there is nothing to run",
            "give a command after `--`, the --image of a container, or the --url of a server that \
             runs elsewhere",
        ));
    }
    no_headers(args)?;
    Ok(ProcessSpec {
        command,
        cwd: match (&args.cwd, old) {
            (None, Some(old)) => old.cwd.clone(),
            (given, _) => caller.absolute(given.as_deref().unwrap_or(Path::new(".")))?,
        },
        env: env_from(args, caller, env_files, old.map(|old| &old.env))?,
        // Another command is looked for where the caller finds it.
        path: same.map_or_else(|| caller.search_path(), |old| old.path.clone()),
        transport: transport_from(args, old.map(|old| &old.transport))?,
    })
}

fn remote_from(
    args: &Args,
    url: &RemoteUrl,
    caller: &Caller,
    old: Option<&RemoteSpec>,
) -> Result<RemoteSpec, CliError> {
    if !args.command.is_empty() {
        return Err(misfit(
            "a server is either run by a command or reached at a --url",
            "leave out one of the two",
        ));
    }
    no_container(&args.container)?;
    let local = args.transport == Some(TransportName::Stdio)
        || args.target_port.is_some()
        || args.path.is_some()
        || args.cwd.is_some()
        || !args.env.is_empty()
        || !args.env_file.is_empty();
    if local {
        return Err(misfit(
            "--transport stdio, --target-port, --path, --cwd, --env and --env-file are for servers \
             that run on this machine",
            "leave them out: the --url says everything, and headers are given with --header-env",
        ));
    }
    let mut headers = old.map(|old| old.headers.clone()).unwrap_or_default();
    let mut variables = old.map(|old| old.variables.clone()).unwrap_or_default();
    for Header { name, value, variable } in headers_from(&args.remote, caller)? {
        variables.remove(&name);
        variables.extend(variable.map(|variable| (name.clone(), variable)));
        headers.insert(name, value);
    }
    Ok(RemoteSpec { url: url.clone(), headers, variables })
}

/// Refuses what is for servers that run elsewhere only.
pub(super) fn no_headers(args: &Args) -> Result<(), CliError> {
    if args.remote.header.is_empty() && args.remote.header_env.is_empty() {
        return Ok(());
    }
    Err(misfit(
        "--header and --header-env are for servers that run elsewhere",
        "give its --url instead of a command, or a variable with -e",
    ))
}

/// Arguments that do not go together.
pub(super) fn misfit(message: &str, help: &str) -> CliError {
    CliError::Usage { message: message.to_owned(), help: Some(help.to_owned()) }
}

/// A header that was given, and the variable that its value is from.
struct Header {
    name: HeaderName,
    value: HeaderValue,
    variable: Option<String>,
}

fn headers_from(args: &RemoteArgs, caller: &Caller) -> Result<Vec<Header>, CliError> {
    let literal = args.header.iter().map(|flag| literal_header(flag));
    let from_env = args.header_env.iter().map(|flag| header_from_env(flag, caller));
    let mut headers: Vec<Header> = Vec::new();
    for header in literal.chain(from_env) {
        let header = header?;
        if headers.iter().any(|other| other.name == header.name) {
            return Err(CliError::usage(format!("the header `{}` is given twice", header.name)));
        }
        headers.push(header);
    }
    Ok(headers)
}

/// Reads `--header KEY=VALUE`. What is said about it never repeats the value.
fn literal_header(flag: &str) -> Result<Header, CliError> {
    let (key, value) =
        flag.split_once('=').ok_or_else(|| CliError::usage("--header: expected KEY=VALUE"))?;
    header("--header", key, value, None)
}

/// Reads `--header-env KEY=VARIABLE`.
fn header_from_env(flag: &str, caller: &Caller) -> Result<Header, CliError> {
    let wrong = |problem: &str| CliError::usage(format!("--header-env {flag}: {problem}"));
    let (key, variable) = flag.split_once('=').ok_or_else(|| wrong("expected KEY=VARIABLE"))?;
    let value = caller.var(variable).ok_or_else(|| wrong("the variable is not set"))?;
    let value = value.to_str().ok_or_else(|| wrong("its value is not valid UTF-8"))?;
    header("--header-env", key, value, Some(variable.to_owned()))
}

fn header(
    flag: &str,
    key: &str,
    value: &str,
    variable: Option<String>,
) -> Result<Header, CliError> {
    let parsed = key.parse().and_then(|name| Ok(Header { name, value: value.parse()?, variable }));
    parsed.map_err(|error| CliError::usage(format!("{flag} {key}: {error}")))
}

/// Flags win over files, later ones over earlier ones, and all of them over what was there.
pub(super) fn env_from(
    args: &Args,
    caller: &Caller,
    files: Vec<(PathBuf, String)>,
    old: Option<&BTreeMap<String, EnvVar>>,
) -> Result<BTreeMap<String, EnvVar>, CliError> {
    let mut env = old.cloned().unwrap_or_default();
    for (file, text) in files {
        env.extend(environment::from_file(&file, &text)?);
    }
    for flag in &args.env {
        env.extend([environment::from_flag(flag, caller)?]);
    }
    Ok(env)
}

pub(super) fn transport_from(args: &Args, old: Option<&Transport>) -> Result<Transport, CliError> {
    let (old_name, old_port, old_path) = match old {
        Some(Transport::StreamableHttp { port, path }) => {
            (TransportName::StreamableHttp, Some(*port), Some(path.as_str()))
        }
        Some(Transport::Stdio) | None => (TransportName::Stdio, None, None),
    };
    let name = args.transport.unwrap_or(old_name);
    let (old_port, old_path) = if name == old_name { (old_port, old_path) } else { (None, None) };
    let path = args.path.as_deref().or(old_path);
    let transport = name.with(args.target_port.or(old_port), path);
    transport.map_err(|mismatch| match mismatch {
        Mismatch::NotHttp => CliError::Usage {
            message: "--target-port and --path are for servers that speak HTTP".to_owned(),
            help: Some("add `--transport streamable-http`".to_owned()),
        },
        Mismatch::NoPort => CliError::usage("--transport streamable-http needs --target-port"),
    })
}

fn policy_from(args: &RestartArgs, old: Option<&RestartPolicy>) -> RestartPolicy {
    let old = old.cloned().unwrap_or_default();
    RestartPolicy {
        max: if args.no_restart { 0 } else { args.restart_max.unwrap_or(old.max) },
        initial: args.restart_initial.unwrap_or(old.initial),
        cap: args.restart_cap.unwrap_or(old.cap),
        stable_after: args.stable_after.unwrap_or(old.stable_after),
        stable_from: args.stable_from.map_or(old.stable_from, |from| match from {
            StableFromName::Ready => StableFrom::Ready,
            StableFromName::Start => StableFrom::Start,
        }),
        on_stop: args.on_stop.map_or(old.on_stop, |on_stop| match on_stop {
            OnStopName::Restart => OnStop::Restart,
            OnStopName::Respect => OnStop::Respect,
        }),
        start_timeout: args.start_timeout.unwrap_or(old.start_timeout),
        stop_timeout: args.stop_timeout.unwrap_or(old.stop_timeout),
    }
}

fn proxy_from(args: &ProxyArgs, old: Option<&ProxySettings>) -> ProxySettings {
    let old = old.cloned().unwrap_or_default();
    ProxySettings {
        hold: args.hold.unwrap_or(old.hold),
        isolate: args.isolate || old.isolate,
        isolate_idle: args.isolate_idle.unwrap_or(old.isolate_idle),
        replay: match &args.replay[..] {
            [] => old.replay,
            given => given.iter().cloned().collect(),
        },
        port: args.port.or(old.port),
        quiet_restart: args.quiet_restart || old.quiet_restart,
    }
}

fn clients_from(args: &ClientArgs, old: Option<&ClientSettings>) -> ClientSettings {
    let old = old.cloned().unwrap_or_default();
    let is_named = args.no_clients || !args.only.is_empty();
    ClientSettings {
        only: if is_named { Some(args.only.iter().cloned().collect()) } else { old.only },
        refresh: args.refresh.or(old.refresh),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use clap::Parser;
    use mainstay_core::RefreshMode;

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

    /// Why a command line that parses describes nothing.
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
    fn every_option_finds_its_place() {
        let spec = spec(
            "web --transport streamable-http --target-port 8080 --path /x --cwd sub -e A=flag \
             -e TOKEN --restart-max 3 --restart-initial 1s --restart-cap 2m --stable-after 0s \
             --stable-from start --on-stop respect --start-timeout 4s --stop-timeout 5s -- serve",
        )
        .unwrap();
        let process = process(&spec);
        assert_eq!(
            process.transport,
            Transport::StreamableHttp { port: 8_080, path: "/x".to_owned() }
        );
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
        };
        assert_eq!(spec.restart, expected);
    }

    #[test]
    fn a_replacement_keeps_whatever_is_not_named() {
        let olds = [
            "a -e TOKEN --cwd sub --restart-max 3 --stable-from start --on-stop respect --hold 1s --isolate \
             --replay x --port 9000 --quiet-restart --client zed --refresh never -- serve --fast",
            "a --transport streamable-http --target-port 80 --path /x --start-timeout 9s -- serve",
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
    fn a_replacement_changes_what_is_named() {
        let old =
            spec("a -e TOKEN --transport streamable-http --target-port 80 --path /x -- serve")
                .unwrap();
        let new = replaced(&old, "a -e TOKEN -e C=3 --target-port 81 -- other").unwrap();
        let new = process(&new);
        assert_eq!(
            (&*new.command, new.cwd.as_path()),
            (&["other".to_owned()][..], Path::new("/project"))
        );
        assert_eq!(new.path.as_deref(), Some("/elsewhere"), "another command is looked for now");
        assert_eq!(new.transport, Transport::StreamableHttp { port: 81, path: "/x".to_owned() });
        let env: Vec<_> =
            new.env.iter().map(|(key, value)| (key.as_str(), value.reveal())).collect();
        assert_eq!(env, [("A", "file"), ("B", "file"), ("C", "3"), ("TOKEN", "new")]);
        let stdio = replaced(&old, "a --transport stdio").unwrap();
        assert_eq!(process(&stdio).transport, Transport::Stdio);
        let far = replaced(&old, "a --url http://h/").unwrap();
        assert!(matches!(far.workload, Workload::Remote(_)), "{far:?}");
        let wrong = replaced(&old, "a --isolate-idle 1m").unwrap_err();
        assert_eq!(wrong, "--isolate-idle is for servers with --isolate");
    }

    #[test]
    fn the_way_to_the_clients_can_be_set() {
        let spec = spec(
            "a --hold 0s --isolate --isolate-idle 5m --replay b --replay a --port 9000 \
                  --quiet-restart -- x",
        )
        .unwrap();
        let expected = ProxySettings {
            hold: Duration::ZERO,
            isolate: true,
            isolate_idle: Duration::from_secs(300),
            replay: ["a", "b"].map(str::to_owned).into(),
            port: Some(9_000),
            quiet_restart: true,
        };
        assert_eq!(spec.proxy, expected);
    }

    #[test]
    fn clients_are_the_chosen_ones_unless_they_are_named() {
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
    fn a_server_that_runs_elsewhere_gets_its_headers() {
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
    fn what_does_not_go_together_is_told() {
        let check = |line: &str, expected: &str| {
            let error = spec(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("a", "there is nothing to run");
        check("a --url http://h/ -- x", "either run by a command or reached at a --url");
        for flag in ["--transport stdio", "--target-port 80", "--path /x", "-e A=1", "--cwd /"] {
            check(&format!("a --url http://h/ {flag}"), "for servers that run on this machine");
        }
        spec("a --url http://h/ --transport streamable-http").unwrap();
        check("a --header A=1 -- x", "for servers that run elsewhere");
        check("a --header-env A=TOKEN -- x", "for servers that run elsewhere");
        check("a --isolate --url http://h/", "--isolate is for servers that speak stdio");
        let http = "a --transport streamable-http --target-port 80";
        check(&format!("{http} --isolate -- x"), "--isolate is for servers that speak stdio");
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
    fn a_word_in_the_wrong_place_is_told_where_it_belongs() {
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
             help: an image is given with `--image`, a command after `--`",
        );
        check(
            "a --image b echo hi",
            "error: unexpected argument `echo`\n\
             help: an image is given with `--image`; its arguments follow after `--`",
        );
        check(
            "a --url http://h/ b",
            "error: unexpected argument `b`\nhelp: leave it out: the --url says everything",
        );
        check(
            "a b -- c",
            "error: unexpected argument `b`\n\
             help: an image is given with `--image`, a command after `--`",
        );
    }

    #[test]
    fn no_restart_means_none() {
        assert_eq!(spec("a --no-restart -- x").unwrap().restart.max, 0);
        assert!(spec("a --no-restart --restart-max 3 -- x").is_err());
    }

    #[test]
    fn http_flags_go_together() {
        let check = |line: &str, expected: &str| {
            let error = spec(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check("a --target-port 80 -- x", "are for servers that speak HTTP");
        check("a --transport streamable-http -- x", "needs --target-port");
        check("a --transport streamable-http --target-port 0 -- x", "0 is not in 1..=65535");
        check(
            "a --transport streamable-http --target-port 1 --path mcp -- x",
            "server `a`: the path `mcp` must begin with `/`",
        );
    }
}
