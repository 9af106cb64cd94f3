//! From arguments to the server that they describe.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_core::{
    ClientSettings, EnvVar, HeaderName, HeaderValue, ProcessSpec, ProxySettings, RemoteSpec,
    RemoteUrl, RestartPolicy, ServerSpec, SpecError, TimeLimit, Transport, Workload,
};

use super::args::{Args, CallTimeout, ClientArgs, ProxyArgs, RemoteArgs, RestartArgs};
use super::container::{container_from, no_container, too_little_memory};
use crate::context::Caller;
use crate::environment;
use crate::error::CliError;
use crate::transport::{Mismatch, TransportName};

/// The server that the arguments describe. Settings that they leave out come from `old`, or are the defaults. `env_files`
/// are the contents of `--env-file`.
pub(super) fn spec_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&ServerSpec>,
) -> Result<ServerSpec, CliError> {
    no_stray(args)?;
    let workload = workload_from(args, caller, env_files, old.map(|old| &old.workload))?;
    let proxy = proxy_from(&args.proxy, old.map(|old| &old.proxy))?;
    if args.proxy.isolate_idle.is_some() && !proxy.isolate {
        return Err(CliError::misuse(
            "--isolate-idle is for servers with --isolate",
            "add `--isolate`",
        ));
    }
    if proxy.isolate && workload.local_transport() != Some(&Transport::Stdio) {
        return Err(CliError::misuse(
            "--isolate is for stdio servers",
            "leave it out: an HTTP server keeps its sessions apart itself",
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
        (Err(SpecError::TooLow { field: "memory", .. }), Some(Some(limit))) => {
            Err(too_little_memory(limit))
        }
        (Err(error), _) => Err(CliError::usage(error.to_string())),
    }
}

fn workload_from(
    args: &Args,
    caller: &Caller,
    env_files: Vec<(PathBuf, String)>,
    old: Option<&Workload>,
) -> Result<Workload, CliError> {
    let (process, container, remote) = match old {
        Some(Workload::Process(old)) => (Some(old), None, None),
        Some(Workload::Container(old)) => (None, Some(old), None),
        Some(Workload::Remote(old)) => (None, None, Some(old)),
        None => (None, None, None),
    };
    // Without a command, an image and a URL, the server keeps what it has.
    let is_kept = args.command.is_empty();
    let (kept_image, kept_url) = match (&args.remote.url, &args.container.image) {
        (None, None) if is_kept => (container.map(|old| &old.image), remote.map(|old| &old.url)),
        _ => (None, None),
    };
    let image = args.container.image.as_ref().or(kept_image);
    match (args.remote.url.as_ref().or(kept_url), image) {
        (Some(_), Some(_)) => Err(CliError::misuse(
            "a server has either an --image or a --url",
            "leave out one of the two",
        )),
        (Some(url), None) => remote_from(args, url, caller, remote).map(Workload::Remote),
        (None, Some(image)) => {
            container_from(args, image, caller, env_files, container).map(Workload::Container)
        }
        (None, None) => process_from(args, caller, env_files, process).map(Workload::Process),
    }
}

/// Refuses arguments that are neither options nor after `--`, with a hint.
fn no_stray(args: &Args) -> Result<(), CliError> {
    let Some(word) = args.stray.first() else { return Ok(()) };
    let help = match (&args.container.image, &args.remote.url) {
        (Some(_), _) => "give the image with `--image`, and its arguments after `--`",
        (None, Some(_)) => "leave it out: a --url needs no arguments",
        (None, None) => "give an image with `--image`, or a command after `--`",
    };
    Err(CliError::misuse(format!("unexpected argument `{word}`"), help))
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
        return Err(CliError::misuse(
            "there is nothing to run",
            "give a command after `--`, an --image, or the --url of a remote server",
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
        // Another command is searched in the caller's PATH.
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
        return Err(CliError::misuse(
            "a server has either a command or a --url",
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
        return Err(CliError::misuse(
            "--transport stdio, --target-port, --path, --cwd, --env and --env-file are for local servers",
            "leave them out; give headers with --header-env",
        ));
    }
    // Credentials of one server are not sent to another.
    let same = old.filter(|old| old.url.has_origin_of(url));
    let mut headers = same.map(|old| old.headers.clone()).unwrap_or_default();
    let mut variables = same.map(|old| old.variables.clone()).unwrap_or_default();
    for Header { name, value, variable } in headers_from(&args.remote, caller)? {
        variables.remove(&name);
        variables.extend(variable.map(|variable| (name.clone(), variable)));
        headers.insert(name, value);
    }
    let dropped = old.into_iter().flat_map(|old| old.headers.keys());
    let dropped = dropped.filter(|name| !headers.contains_key(*name));
    let dropped: Vec<String> = dropped.map(|name| format!("`{name}`")).collect();
    if !dropped.is_empty() {
        return Err(CliError::misuse(
            "headers are not kept for another host",
            format!(
                "give {} again with --header-env, or drop all settings with --reset",
                dropped.join(", ")
            ),
        ));
    }
    Ok(RemoteSpec { url: url.clone(), headers, variables })
}

/// Refuses options that are for remote servers only.
pub(super) fn no_headers(args: &Args) -> Result<(), CliError> {
    if args.remote.header.is_empty() && args.remote.header_env.is_empty() {
        return Ok(());
    }
    Err(CliError::misuse(
        "--header and --header-env are for remote servers",
        "give a --url instead of a command, or set a variable with -e",
    ))
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

/// Parses `--header KEY=VALUE`. Errors never contain the value.
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

/// Flags take precedence over files, later ones over earlier ones, and all of them over `old`.
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
        Mismatch::NotHttp => CliError::misuse(
            "--target-port and --path are for HTTP servers",
            "add `--transport streamable-http`",
        ),
        Mismatch::NoPort => CliError::usage("--transport streamable-http needs --target-port"),
    })
}

fn policy_from(args: &RestartArgs, old: Option<&RestartPolicy>) -> RestartPolicy {
    let old = old.cloned().unwrap_or_default();
    RestartPolicy {
        max: match args.no_restart {
            Some(true) => 0,
            Some(false) if old.max == 0 => RestartPolicy::default().max,
            Some(false) | None => args.restart_max.unwrap_or(old.max),
        },
        initial: args.restart_initial.unwrap_or(old.initial),
        cap: args.restart_cap.unwrap_or(old.cap),
        stable_after: args.stable_after.unwrap_or(old.stable_after),
        stable_from: args.stable_from.unwrap_or(old.stable_from),
        on_stop: args.on_stop.unwrap_or(old.on_stop),
        start_timeout: args.start_timeout.unwrap_or(old.start_timeout),
        stop_timeout: args.stop_timeout.unwrap_or(old.stop_timeout),
        hang_after: args.hang_after.unwrap_or(old.hang_after),
        busy_limit: args.busy_limit.unwrap_or(old.busy_limit),
        block_limit: args.block_limit.unwrap_or(old.block_limit),
    }
}

fn proxy_from(args: &ProxyArgs, old: Option<&ProxySettings>) -> Result<ProxySettings, CliError> {
    let old = old.cloned().unwrap_or_default();
    let (call_timeout, tool_timeouts) = match &args.call_timeout[..] {
        [] => (old.call_timeout, old.tool_timeouts),
        given => timeouts_from(given)?,
    };
    Ok(ProxySettings {
        call_timeout,
        tool_timeouts,
        hold: args.hold.unwrap_or(old.hold),
        isolate: args.isolate.unwrap_or(old.isolate),
        isolate_idle: args.isolate_idle.unwrap_or(old.isolate_idle),
        replay: match &args.replay[..] {
            [] => old.replay,
            given => given.iter().cloned().collect(),
        },
        port: args.port.or(old.port),
        quiet_restart: args.quiet_restart.unwrap_or(old.quiet_restart),
        late_results: args.no_late_results.map_or(old.late_results, |is_off| !is_off),
    })
}

/// The limit of all calls, and those of single tools.
fn timeouts_from(
    given: &[CallTimeout],
) -> Result<(Option<Duration>, BTreeMap<String, TimeLimit>), CliError> {
    let mut tools = BTreeMap::new();
    let mut all = None;
    for CallTimeout { tool, limit } in given {
        let earlier = match tool {
            Some(tool) => tools.insert(tool.clone(), TimeLimit(*limit)).is_some(),
            None => all.replace(*limit).is_some(),
        };
        if earlier {
            let what = tool.as_ref().map_or("all tools".to_owned(), |tool| format!("`{tool}`"));
            return Err(CliError::usage(format!("--call-timeout is given twice for {what}")));
        }
    }
    Ok((all.flatten(), tools))
}

fn clients_from(args: &ClientArgs, old: Option<&ClientSettings>) -> ClientSettings {
    let old = old.cloned().unwrap_or_default();
    ClientSettings {
        only: match args.no_clients {
            Some(false) => None,
            None if args.only.is_empty() => old.only,
            Some(true) | None => Some(args.only.iter().cloned().collect()),
        },
        refresh: args.refresh.or(old.refresh),
    }
}

#[cfg(test)]
pub(super) mod tests;
