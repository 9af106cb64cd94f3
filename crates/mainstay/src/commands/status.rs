//! `mainstay status`

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_api::{
    EntryStanding, LastExit, McpInfo, Registration, Request, ServerInfo, StatusReport, TargetOwner,
};
use mainstay_core::{
    OnStop, ProxySettings, RefreshMode, RestartPolicy, ServerName, StableFrom, TimeLimit, Wanted,
    human_duration,
};

use super::ls;
use crate::context::{Context, now};
use crate::error::CliError;
use crate::limits::limits_text;
use crate::text::{Cell, ago, due, facts, plain_line, reason, short_id};
use crate::times::{Zone, ZoneArgs};
use crate::ui::paint;

const AWAY: &str = "removed until it is ready";

/// Show everything about one server
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the server
    name: ServerName,
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let request = Request::Status { name: args.name };
    let report: StatusReport = ctx.ask("asking the daemon", &request).await?;
    let (now, zone) = (now(), args.zone.zone());
    ctx.ui.answer(args.json, &report, |report| page(report, now, &zone))
}

/// Lines of `key: value`; unknown values are left out.
fn page(report: &StatusReport, now: Timestamp, zone: &Zone) -> String {
    let server = &report.server;
    let moment = |at: Timestamp| format!("{}, {}", zone.full(at), ago(at, now));
    let wanted = match report.wanted {
        Wanted::On => "on",
        Wanted::Off => "off",
        Wanted::Gone => "gone",
    };
    let container = report.container.as_ref();
    let is_remote = server.is_remote();
    let lines = [
        ("name", Some(server.name.to_string())),
        ("status", Some(server.status.to_string())),
        ("reason", reason(server)),
        ("wanted", Some(wanted.to_owned())),
        ("engine", Some(engine(report))),
        ("transport", Some(server.transport.clone())),
        ("url", server.url.clone()),
        ("server", report.mcp.as_ref().map(server_name)),
        ("pid", server.pid.map(|pid| pid.to_string())),
        ("container", server.container_id.as_deref().map(|id| short_id(id).to_owned())),
        ("run", Some(server.generation.to_string())),
        ("started", server.started_at.map(moment)),
        ("ready", server.ready_at.map(moment)),
        ("sessions", Some(server.sessions.to_string())),
        ("restarts", Some(restarts(server, now))),
        ("next restart", server.next_restart_at.map(|at| due(at, now))),
        ("last end", server.last_exit.as_ref().map(|exit| last_end(exit, now))),
        ("command", report.command.as_ref().map(|command| plain_line(&command_line(command)))),
        ("directory", report.cwd.as_ref().map(|cwd| cwd.display().to_string())),
        ("image", container.map(|container| container.image.clone())),
        ("arguments", container.and_then(|container| arguments(&container.args))),
        ("volumes", container.and_then(|container| list(&container.volumes))),
        ("network", container.and_then(|container| container.network.clone())),
        ("user", container.and_then(|container| container.user.clone())),
        ("limits", container.map(|container| limits_text(&container.limits))),
        ("loosened", container.and_then(|container| list(&container.loosened))),
        ("variables", report.env.as_deref().and_then(list)),
        ("target", report.target.clone()),
        ("listener", report.target_owner.as_ref().map(listener)),
        ("headers", report.headers.as_deref().and_then(list)),
        ("requests", Some(requests(&report.proxy))),
        ("clients", clients(report)),
        ("policy", Some(policy(&report.restart, is_remote))),
        // A remote server has none.
        ("log", (!is_remote).then(|| report.log.display().to_string())),
        ("described", Some(moment(report.created_at))),
    ];
    let rows = lines.into_iter().filter_map(|(key, value)| {
        let paint = match key {
            "status" => paint::status(server.status),
            "loosened" => paint::warning,
            _ => str::to_owned,
        };
        Some((key, Cell::painted(value?, paint)))
    });
    facts(rows)
}

/// Where it runs; of a container also where that engine is reached.
fn engine(report: &StatusReport) -> String {
    let engine = &report.server.engine;
    match report.container.as_ref().and_then(|container| container.host.as_deref()) {
        Some(host) => format!("{engine} at {}", plain_line(host)),
        None => engine.clone(),
    }
}

fn arguments(args: &[String]) -> Option<String> {
    (!args.is_empty()).then(|| plain_line(&command_line(args)))
}

fn list(items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| plain_line(&items.join(", ")))
}

fn server_name(mcp: &McpInfo) -> String {
    let name = plain_line(mcp.name.as_deref().unwrap_or("unnamed"));
    let version = mcp.version.as_deref().map(|v| format!(" {}", plain_line(v))).unwrap_or_default();
    format!("{name}{version}, MCP {}", plain_line(&mcp.protocol))
}

fn listener(owner: &TargetOwner) -> String {
    format!("{}, which is not a process of this server", plain_line(&owner.description))
}

fn restarts(server: &ServerInfo, now: Timestamp) -> String {
    let all = ls::restarts(server, now);
    format!("{all}; {} of {} count toward the limit", server.restarts, server.restart_max)
}

fn last_end(exit: &LastExit, now: Timestamp) -> String {
    format!("{}, {}", plain_line(&exit.detail), ago(exit.at, now))
}

/// A command, quoted for a shell.
fn command_line(command: &[String]) -> String {
    let plain = |word: &str| {
        let safe = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
        !word.is_empty() && word.chars().all(safe)
    };
    let quote = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// How clients' requests are treated while the server is down.
fn requests(proxy: &ProxySettings) -> String {
    let mut parts = vec![if proxy.hold.is_zero() {
        "fail at once".to_owned()
    } else {
        format!("wait up to {}", human_duration(proxy.hold))
    }];
    if proxy.isolate {
        let idle = human_duration(proxy.isolate_idle);
        parts.push(format!(
            "each session has its own process, kept for {idle} after its last request"
        ));
    }
    parts.extend(timeouts(proxy));
    if !proxy.replay.is_empty() {
        let tools: Vec<String> = proxy.replay.iter().map(|tool| plain_line(tool)).collect();
        parts.push(format!("safe to repeat: {}", tools.join(", ")));
    }
    parts.extend(proxy.port.map(|port| format!("also on port {port}")));
    if proxy.quiet_restart {
        parts.push("no note after a restart".to_owned());
    }
    if !proxy.late_results {
        parts.push("cancelled when their client times out".to_owned());
    }
    parts.join("; ")
}

/// How long calls may take, if that is limited.
fn timeouts(proxy: &ProxySettings) -> Option<String> {
    let text = |limit: Option<Duration>| limit.map_or("no limit".to_owned(), human_duration);
    let tools = proxy.tool_timeouts.iter();
    let tools: Vec<_> = tools
        .map(|(tool, TimeLimit(limit))| format!("{} {}", plain_line(tool), text(*limit)))
        .collect();
    let all = proxy.call_timeout.map(|limit| text(Some(limit)));
    let limits: Vec<_> = all.into_iter().chain(tools).collect();
    (!limits.is_empty()).then(|| format!("call timeout: {}", limits.join(", ")))
}

/// The clients that have an entry for it, and the refresh mode if it is not the default.
fn clients(report: &StatusReport) -> Option<String> {
    let names_none = report.named_clients.as_ref().is_some_and(BTreeSet::is_empty);
    if names_none && report.clients.is_empty() {
        return Some("none (--no-clients)".to_owned());
    }
    let (away, here): (Vec<&Registration>, Vec<_>) =
        report.clients.iter().partition(|entry| entry.standing == EntryStanding::Away);
    let here: Vec<String> = here.into_iter().map(registration).collect();
    let away: Vec<String> = away.into_iter().map(registration).collect();
    let refresh = match report.refresh {
        RefreshMode::Auto => None,
        RefreshMode::Always => Some("removed and added again at every restart".to_owned()),
        RefreshMode::Never => Some("never removed while the server exists".to_owned()),
    };
    let away = list(&away).map(|away| format!("{AWAY}: {away}"));
    let parts: Vec<String> = [list(&here), away, refresh].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn registration(entry: &Registration) -> String {
    let product = &entry.product;
    match entry.standing {
        EntryStanding::Ours | EntryStanding::Away => product.clone(),
        EntryStanding::Drifted => format!("{product} (changed by hand)"),
        EntryStanding::Withdrawn => format!("{product} (removed by hand)"),
        EntryStanding::Missing => format!("{product} (missing)"),
        EntryStanding::Foreign => format!("{product} (your own entry)"),
    }
}

fn policy(policy: &RestartPolicy, is_remote: bool) -> String {
    let from = match policy.stable_from {
        StableFrom::Ready => "ready",
        StableFrom::Start => "up",
    };
    let on_stop = match policy.on_stop {
        OnStop::Restart => "",
        OnStop::Respect => ", stays stopped after `docker stop`",
    };
    let restarts = match policy.max {
        0 => "no restarts".to_owned(),
        max => format!(
            "{max} restarts: at once, then after {} up to {}",
            human_duration(policy.initial),
            human_duration(policy.cap)
        ),
    };
    format!(
        "{restarts}; stable once {from} for {}; {} to start, {} to stop{on_stop}{}",
        human_duration(policy.stable_after),
        human_duration(policy.start_timeout),
        human_duration(policy.stop_timeout),
        if is_remote { String::new() } else { silence_limits(policy) },
    )
}

/// The limits for a run that does not answer, if they are not the default ones.
fn silence_limits(policy: &RestartPolicy) -> String {
    let usual = RestartPolicy::default();
    let limits = [
        ("hung", policy.hang_after, usual.hang_after),
        ("busy", policy.busy_limit, usual.busy_limit),
        ("blocked", policy.block_limit, usual.block_limit),
    ];
    let changed = limits.into_iter().filter(|(_, limit, usual)| limit != usual);
    let text = changed.map(|(verdict, limit, _)| match limit {
        Some(limit) => format!("; killed when {verdict} for {}", human_duration(limit)),
        None => format!("; never killed when {verdict}"),
    });
    text.collect()
}

#[cfg(test)]
mod tests {
    use mainstay_api::ContainerInfo;
    use mainstay_core::{Limits, Status};

    use super::super::ls::tests::server;
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn report() -> StatusReport {
        let mut time = server("time", Status::Running);
        time.pid = Some(4_711);
        time.started_at = Some(at(60));
        StatusReport {
            server: time,
            wanted: Wanted::On,
            command: Some(["uvx", "two words", "it's"].map(str::to_owned).into()),
            cwd: Some("/home/me".into()),
            container: None,
            env: Some(["A", "TOKEN"].map(str::to_owned).into()),
            target: None,
            target_owner: None,
            headers: None,
            restart: RestartPolicy::default(),
            proxy: ProxySettings::default(),
            refresh: RefreshMode::default(),
            named_clients: None,
            clients: Vec::new(),
            mcp: Some(McpInfo {
                name: Some("time".to_owned()),
                version: Some("1.0".to_owned()),
                protocol: "2025-06-18".to_owned(),
            }),
            log: "/state/logs/time.log".into(),
            created_at: at(0),
        }
    }

    #[test]
    fn the_page_lists_what_is_known() {
        let page = page(&report(), at(120), &Zone::utc());
        insta::assert_snapshot!(anstream::adapter::strip_str(&page), @r"
        name:       time
        status:     running
        wanted:     on
        engine:     process
        transport:  stdio
        server:     time 1.0, MCP 2025-06-18
        pid:        4711
        run:        1
        started:    1970-01-01 00:01:00 UTC, 1 min ago
        sessions:   0
        restarts:   0; 0 of 10 count toward the limit
        command:    uvx 'two words' 'it'\''s'
        directory:  /home/me
        variables:  A, TOKEN
        requests:   wait up to 45 s
        policy:     10 restarts: at once, then after 5 s up to 1 min; stable once ready for 30 s; 2 min to start, 10 s to stop
        log:        /state/logs/time.log
        described:  1970-01-01 00:00:00 UTC, 2 min ago
        ");
    }

    #[test]
    fn a_container_is_shown_with_loosened_limits() {
        let mut report = report();
        report.server.engine = "docker".to_owned();
        report.server.pid = None;
        report.server.container_id = Some("3f2a9c01b7d4e5f60718".to_owned());
        (report.command, report.cwd) = (None, None);
        let limits = Limits { memory: None, ..Limits::default() };
        report.container = Some(ContainerInfo {
            image: "mcp/time:1".to_owned(),
            args: ["--zone", "two words"].map(str::to_owned).into(),
            host: Some("unix:///var/run/docker.sock".to_owned()),
            volumes: ["/a:/b:ro", "data:/data"].map(str::to_owned).into(),
            network: Some("host".to_owned()),
            user: None,
            loosened: limits.loosened(Some("host")),
            limits,
        });
        report.target = Some("port 8000 in the container, path /mcp".to_owned());
        let page = page(&report, at(120), &Zone::utc());
        insta::assert_snapshot!(anstream::adapter::strip_str(&page), @"
        name:       time
        status:     running
        wanted:     on
        engine:     docker at unix:///var/run/docker.sock
        transport:  stdio
        server:     time 1.0, MCP 2025-06-18
        container:  3f2a9c01b7d4
        run:        1
        started:    1970-01-01 00:01:00 UTC, 1 min ago
        sessions:   0
        restarts:   0; 0 of 10 count toward the limit
        image:      mcp/time:1
        arguments:  --zone 'two words'
        volumes:    /a:/b:ro, data:/data
        network:    host
        limits:     any memory, 256 processes
        loosened:   host network, no memory limit
        variables:  A, TOKEN
        target:     port 8000 in the container, path /mcp
        requests:   wait up to 45 s
        policy:     10 restarts: at once, then after 5 s up to 1 min; stable once ready for 30 s; 2 min to start, 10 s to stop
        log:        /state/logs/time.log
        described:  1970-01-01 00:00:00 UTC, 2 min ago
        ");
        assert!(page.contains(&paint::warning("host network, no memory limit")));
    }

    #[test]
    fn unusual_proxy_settings_are_shown() {
        let proxy = ProxySettings {
            hold: std::time::Duration::ZERO,
            isolate: true,
            isolate_idle: std::time::Duration::from_secs(300),
            call_timeout: Some(std::time::Duration::from_secs(300)),
            tool_timeouts: [("watch".to_owned(), TimeLimit(None))].into(),
            replay: ["add", "convert"].map(str::to_owned).into(),
            port: Some(9_000),
            quiet_restart: true,
            late_results: false,
        };
        assert_eq!(
            requests(&proxy),
            "fail at once; each session has its own process, kept for 5 min after its last request; call timeout: 5 min, watch no limit; safe to repeat: add, convert; also on port 9000; no note after a restart; cancelled when their client times out"
        );
    }

    #[test]
    fn entries_and_an_unusual_refresh_are_shown() {
        let check = |report: &StatusReport, expected: Option<&str>| {
            assert_eq!(clients(report).as_deref(), expected);
        };
        let mut report = report();
        check(&report, None);
        report.named_clients = Some(BTreeSet::new());
        check(&report, Some("none (--no-clients)"));
        report.named_clients = None;
        report.refresh = RefreshMode::Never;
        check(&report, Some("never removed while the server exists"));
        let entry = |product: &str, standing| Registration {
            client: String::new(),
            product: product.to_owned(),
            file: "/home/me/mcp.json".into(),
            standing,
        };
        report.clients = vec![
            entry("Cursor", EntryStanding::Ours),
            entry("Kiro", EntryStanding::Away),
            entry("Zed", EntryStanding::Away),
        ];
        report.refresh = RefreshMode::Auto;
        let entries = format!("Cursor; {AWAY}: Kiro, Zed");
        check(&report, Some(&entries));
        report.refresh = RefreshMode::Always;
        let both = format!("{entries}; removed and added again at every restart");
        check(&report, Some(&both));
    }

    #[test]
    fn limits_for_a_silent_server_are_shown_if_they_were_changed() {
        assert_eq!(silence_limits(&RestartPolicy::default()), "");
        let changed = RestartPolicy {
            hang_after: None,
            busy_limit: Some(std::time::Duration::from_secs(600)),
            ..RestartPolicy::default()
        };
        assert_eq!(
            silence_limits(&changed),
            "; never killed when hung; killed when busy for 10 min"
        );
    }

    #[test]
    fn a_remote_server_has_neither_a_log_nor_limits() {
        let mut report = report();
        report.restart.hang_after = Some(Duration::from_secs(5));
        let shown = |report: &StatusReport| page(report, at(120), &Zone::utc());
        assert!(shown(&report).contains("killed when hung for 5 s"), "{}", shown(&report));
        report.server.engine = "remote".to_owned();
        let remote = shown(&report);
        assert!(!remote.contains("killed when") && !remote.contains(".log"), "{remote}");
    }
}
