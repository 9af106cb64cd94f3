//! `mainstay doctor`: looks for problems and suggests fixes.

mod checks;
mod clients;
mod engines;
mod restore;

use mainstay_api::{Request, ServerInfo};
use mainstay_daemon::discover::Disk;
use serde::Serialize;

use self::checks::{
    NextStart, callers_check, daemon_check, database_check, directory_check, events_check,
    kernel_checks, listen_check, program_checks, server_check, settings_check,
};
use self::clients::{client_checks, find_clients};
use self::engines::engine_check;
use crate::context::Context;
use crate::error::{CliError, Exit};
use crate::remote::Remote;
use crate::settings::Settings;
use crate::text::plain_line;
use crate::ui::paint;

/// Look for problems and suggest fixes
///
/// Starts no daemon and, without `--restore`, changes nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long, conflicts_with = "restore")]
    json: bool,
    /// Restore the list of servers from its copy, if it was lost or is damaged
    #[arg(long)]
    restore: bool,
    /// With `--restore`: start without servers, if there is no copy
    #[arg(long, requires = "restore")]
    empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    name: String,
    level: Level,
    detail: String,
    /// What to do about it.
    help: Option<String>,
}

impl Check {
    fn new(name: impl Into<String>, level: Level, detail: impl Into<String>) -> Self {
        Self { name: name.into(), level, detail: detail.into(), help: None }
    }

    /// A failed check with the help of an error, if it has one.
    fn failed(name: &str, detail: impl Into<String>, help: Option<String>) -> Self {
        Self { help, ..Self::new(name, Level::Fail, detail) }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    if args.restore {
        return restore::run(args.empty, ctx).await;
    }
    let checks = examine(ctx).await?;
    ctx.ui.answer(args.json, &checks, |checks| page(checks))?;
    let failed = checks.iter().any(|check| check.level == Level::Fail);
    if failed { Err(CliError::Answered(Exit::Failed)) } else { Ok(()) }
}

/// A line or two per check, the most serious ones first.
fn page(checks: &[Check]) -> String {
    let mut sorted: Vec<&Check> = checks.iter().collect();
    sorted.sort_by_key(|check| std::cmp::Reverse(check.level));
    sorted.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

async fn examine(ctx: &Context) -> Result<Vec<Check>, CliError> {
    let instance = ctx.instance()?;
    let mut checks = program_checks(&ctx.caller);
    checks.extend(kernel_checks());
    let mut base = vec![
        directory_check("state directory", &instance.state_dir),
        directory_check("runtime directory", &instance.run_dir),
    ];
    let remote = Remote::of(ctx)?;
    let daemon = ctx.ui.waiting("looking for the daemon", remote.inspect()).await;
    base.push(database_check(mainstay_daemon::inspect(&instance).err()));
    base.extend(events_check(&instance.state_dir.join("events.db")));
    let can_use_base = base.iter().all(|check| check.level != Level::Fail);
    checks.append(&mut base);
    let running = daemon.as_ref().ok().and_then(Option::as_ref);
    let settings = ctx.settings();
    let usual = Settings::default();
    let effective = settings.as_ref().ok().and_then(Option::as_ref).unwrap_or(&usual);
    let listen = ctx.caller.listen(effective);
    let can_start = can_use_base && settings.is_ok() && listen.is_ok();
    let failure_report = remote.failure_report();
    let stopped_by_user = remote.is_stopped_by_user();
    let next_start =
        NextStart { can_start, stopped_by_user, failure_report: failure_report.as_ref() };
    checks.push(daemon_check(&daemon, next_start));
    checks.extend(settings_check(instance.config_file.as_deref(), &settings));
    checks.push(listen_check(listen, running));
    checks.extend(callers_check(effective));
    checks.push(engine_check(&ctx.caller, &Disk));
    if let Ok(Some(_)) = daemon
        && let Some(servers) = remote.call_if_running::<Vec<ServerInfo>>(&Request::List).await?
    {
        let found: Vec<Check> = servers.iter().map(server_check).collect();
        let failing = servers.iter().zip(&found).filter(|(_, check)| check.level != Level::Ok);
        let failing: Vec<&str> = failing.map(|(server, _)| server.name.as_str()).collect();
        let clients = client_checks(&find_clients(&remote, &ctx.caller).await, &failing);
        checks.extend(found);
        checks.extend(clients);
    }
    Ok(checks)
}

fn line(check: &Check) -> String {
    let mark = match check.level {
        Level::Ok => paint::good("ok  "),
        Level::Warn => paint::warning("warn"),
        Level::Fail => paint::bad("fail"),
    };
    let line = format!("{mark}  {}: {}", check.name, plain_line(&check.detail));
    match &check.help {
        Some(help) => format!("{line}\n      {} {help}", paint::note("help:")),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_first() {
        let check = |name: &str, level| Check::new(name, level, "x");
        let checks = [
            check("a", Level::Ok),
            check("b", Level::Warn),
            check("c", Level::Fail),
            check("d", Level::Warn),
        ];
        let page = anstream::adapter::strip_str(&page(&checks)).to_string();
        assert_eq!(page, "fail  c: x\nwarn  b: x\nwarn  d: x\nok    a: x");
    }

    #[test]
    fn a_check_is_a_line_and_its_help_another() {
        let check = Check::new("HOME", Level::Fail, "not set").help("set it");
        assert_eq!(
            anstream::adapter::strip_str(&line(&check)).to_string(),
            "fail  HOME: not set\n      help: set it"
        );
    }
}
