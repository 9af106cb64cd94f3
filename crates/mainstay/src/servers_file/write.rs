//! How a server is written: only what differs from the default, and no values of variables.

use std::fmt::Write as _;
use std::time::Duration;

use mainstay_core::{OnStop, RestartPolicy, ServerSpec, StableFrom, Transport, Workload};

use crate::transport::DEFAULT_PATH;

/// Appends the table of a server.
pub(super) fn write_server(text: &mut String, spec: &ServerSpec) {
    let Workload::Process(process) = &spec.workload;
    let command = process.command.iter().cloned().map(toml::Value::String).collect();
    let mut lines = vec![
        ("command".to_owned(), toml::Value::Array(command)),
        ("cwd".to_owned(), process.cwd.to_string_lossy().into_owned().into()),
    ];
    match &spec.transport {
        Transport::Stdio => {}
        Transport::StreamableHttp { port, path } => {
            lines.push(("transport".to_owned(), spec.transport.as_str().into()));
            lines.push(("target-port".to_owned(), i64::from(*port).into()));
            if path != DEFAULT_PATH {
                lines.push(("path".to_owned(), path.as_str().into()));
            }
        }
    }
    lines.extend(process.env.keys().map(|variable| {
        let reference = toml::Table::from_iter([("from-env".to_owned(), variable.as_str().into())]);
        (format!("env.{}", key(variable)), toml::Value::Table(reference))
    }));
    let restart = restart_lines(&spec.restart);
    lines.extend(restart.into_iter().map(|(name, value)| (format!("restart.{name}"), value)));

    let _infallible = writeln!(text, "\n[servers.{}]", spec.name);
    for (key, value) in lines {
        let _infallible = writeln!(text, "{key} = {value}");
    }
}

/// What differs from the default policy.
fn restart_lines(policy: &RestartPolicy) -> Vec<(&'static str, toml::Value)> {
    let default = RestartPolicy::default();
    let time = |time: Duration| humantime::format_duration(time).to_string().into();
    let stable_from = match policy.stable_from {
        StableFrom::Ready => "ready",
        StableFrom::Start => "start",
    };
    let on_stop = match policy.on_stop {
        OnStop::Restart => "restart",
        OnStop::Respect => "respect",
    };
    let all: [(bool, &str, toml::Value); 8] = [
        (policy.max == default.max, "max", i64::from(policy.max).into()),
        (policy.initial == default.initial, "initial", time(policy.initial)),
        (policy.cap == default.cap, "cap", time(policy.cap)),
        (policy.stable_after == default.stable_after, "stable-after", time(policy.stable_after)),
        (policy.stable_from == default.stable_from, "stable-from", stable_from.into()),
        (policy.on_stop == default.on_stop, "on-stop", on_stop.into()),
        (
            policy.start_timeout == default.start_timeout,
            "start-timeout",
            time(policy.start_timeout),
        ),
        (policy.stop_timeout == default.stop_timeout, "stop-timeout", time(policy.stop_timeout)),
    ];
    all.into_iter().filter(|(same, ..)| !same).map(|(_, name, value)| (name, value)).collect()
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
