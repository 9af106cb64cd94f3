//! How a server is written: only what differs from the default, and no values of variables or
//! headers, nor what else may be a secret ([`redact`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use mainstay_core::{
    ClientSettings, ContainerSpec, EnvVar, HeaderName, OnStop, ProcessSpec, ProxySettings,
    RemoteSpec, RestartPolicy, ServerName, ServerSpec, StableFrom, Transport, Workload,
};

use super::limits::limits_lines;
use super::redact;
use crate::transport::DEFAULT_PATH;

/// Where Docker usually is. Elsewhere it may be in another place, so this one is not written.
const USUAL_HOST: &str = "unix:///var/run/docker.sock";

/// A line of a table: a key and its value.
type Line = (String, toml::Value);

/// Appends the table of a server.
pub(super) fn write_server(text: &mut String, spec: &ServerSpec) {
    let mut lines = match &spec.workload {
        Workload::Process(process) => process_lines(process),
        Workload::Container(container) => container_lines(container),
        Workload::Remote(remote) => remote_lines(&spec.name, remote),
    };
    lines.extend(client_lines(&spec.clients));
    let groups = [("proxy", proxy_lines(&spec.proxy)), ("restart", restart_lines(&spec.restart))];
    for (group, members) in groups {
        lines.extend(members.into_iter().map(|(name, value)| (format!("{group}.{name}"), value)));
    }
    let _infallible = writeln!(text, "\n[servers.{}]", spec.name);
    for (key, value) in lines {
        let _infallible = writeln!(text, "{key} = {value}");
    }
}

/// The variable from which an import takes the value of a header that came from none. Servers never share one: what
/// opens one of them is not for another.
pub(super) fn header_variable(server: &ServerName, header: &HeaderName) -> String {
    let name = format!("{server}_{header}").to_ascii_uppercase();
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn process_lines(process: &ProcessSpec) -> Vec<Line> {
    let mut lines = vec![
        ("command".to_owned(), texts(&redact::arguments(&process.command))),
        ("cwd".to_owned(), process.cwd.to_string_lossy().into_owned().into()),
    ];
    lines.extend(transport_lines(&process.transport));
    lines.extend(env_lines(&process.env));
    lines
}

fn container_lines(container: &ContainerSpec) -> Vec<Line> {
    let text = |name: &str, value: Option<&String>| {
        value.map(|value| (name.to_owned(), value.as_str().into()))
    };
    let mut lines = vec![("image".to_owned(), container.image.as_str().into())];
    if !container.args.is_empty() {
        lines.push(("args".to_owned(), texts(&redact::arguments(&container.args))));
    }
    lines.extend(container.engine.map(|kind| ("engine".to_owned(), kind.as_str().into())));
    lines.extend(text("host", container.host.as_ref().filter(|host| *host != USUAL_HOST)));
    if !container.volumes.is_empty() {
        let volumes: Vec<String> = container.volumes.iter().map(ToString::to_string).collect();
        lines.push(("volumes".to_owned(), texts(&volumes)));
    }
    lines.extend(text("network", container.network.as_ref()));
    lines.extend(text("user", container.user.as_ref()));
    lines.extend(transport_lines(&container.transport));
    lines.extend(env_lines(&container.env));
    let limits = limits_lines(&container.limits).into_iter();
    lines.extend(limits.map(|(name, value)| (format!("limits.{name}"), value)));
    lines
}

fn transport_lines(transport: &Transport) -> Vec<Line> {
    let mut lines = Vec::new();
    match transport {
        Transport::Stdio => {}
        Transport::StreamableHttp { port, path } => {
            lines.push(("transport".to_owned(), transport.as_str().into()));
            lines.push(("target-port".to_owned(), i64::from(*port).into()));
            if path != DEFAULT_PATH {
                lines.push(("path".to_owned(), path.as_str().into()));
            }
        }
    }
    lines
}

fn env_lines(env: &BTreeMap<String, EnvVar>) -> impl Iterator<Item = Line> {
    env.keys().map(|variable| (format!("env.{}", key(variable)), reference(variable)))
}

fn remote_lines(server: &ServerName, remote: &RemoteSpec) -> Vec<Line> {
    let mut lines = vec![("url".to_owned(), redact::url(remote.url.as_str()).into_owned().into())];
    lines.extend(remote.headers.keys().map(|name| {
        let known = remote.variables.get(name).cloned();
        let variable = known.unwrap_or_else(|| header_variable(server, name));
        (format!("headers.{}", key(name.as_str())), reference(&variable))
    }));
    lines
}

fn client_lines(clients: &ClientSettings) -> impl Iterator<Item = Line> {
    let only = clients.only.as_ref().map(|ids| ("clients".to_owned(), texts(ids)));
    let refresh = clients.refresh.map(|mode| ("refresh".to_owned(), mode.as_str().into()));
    only.into_iter().chain(refresh)
}

pub(super) fn texts<'a>(texts: impl IntoIterator<Item = &'a String>) -> toml::Value {
    texts.into_iter().cloned().map(toml::Value::String).collect::<Vec<_>>().into()
}

/// Where a value is found, in place of the value.
fn reference(variable: &str) -> toml::Value {
    toml::Table::from_iter([("from-env".to_owned(), variable.into())]).into()
}

/// Keeps the lines of settings that differ from the default.
pub(super) fn differing<const N: usize>(
    all: [(bool, &'static str, toml::Value); N],
) -> Vec<(&'static str, toml::Value)> {
    all.into_iter().filter(|(same, ..)| !same).map(|(_, name, value)| (name, value)).collect()
}

fn proxy_lines(proxy: &ProxySettings) -> Vec<(&'static str, toml::Value)> {
    let default = ProxySettings::default();
    let idle = proxy.isolate_idle;
    let quiet = proxy.quiet_restart;
    differing([
        (proxy.hold == default.hold, "hold", time(proxy.hold)),
        (proxy.isolate == default.isolate, "isolate", proxy.isolate.into()),
        (idle == default.isolate_idle, "isolate-idle", time(idle)),
        (proxy.replay == default.replay, "replay", texts(&proxy.replay)),
        (proxy.port.is_none(), "port", i64::from(proxy.port.unwrap_or_default()).into()),
        (quiet == default.quiet_restart, "quiet-restart", quiet.into()),
    ])
}

fn time(time: Duration) -> toml::Value {
    humantime::format_duration(time).to_string().into()
}

fn restart_lines(policy: &RestartPolicy) -> Vec<(&'static str, toml::Value)> {
    let default = RestartPolicy::default();
    let stable_from = match policy.stable_from {
        StableFrom::Ready => "ready",
        StableFrom::Start => "start",
    };
    let on_stop = match policy.on_stop {
        OnStop::Restart => "restart",
        OnStop::Respect => "respect",
    };
    let (start, stop) = (policy.start_timeout, policy.stop_timeout);
    differing([
        (policy.max == default.max, "max", i64::from(policy.max).into()),
        (policy.initial == default.initial, "initial", time(policy.initial)),
        (policy.cap == default.cap, "cap", time(policy.cap)),
        (policy.stable_after == default.stable_after, "stable-after", time(policy.stable_after)),
        (policy.stable_from == default.stable_from, "stable-from", stable_from.into()),
        (policy.on_stop == default.on_stop, "on-stop", on_stop.into()),
        (start == default.start_timeout, "start-timeout", time(start)),
        (stop == default.stop_timeout, "stop-timeout", time(stop)),
    ])
}

/// A key of TOML, quoted if it must be.
fn key(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(bare) {
        text.to_owned()
    } else {
        toml::Value::String(text.to_owned()).to_string()
    }
}
