//! `mainstay service status`

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use crate::context::{Context, now};
use crate::error::{CliError, Exit};
use crate::service::{Activity, Service, ServiceState, UnitState};
use crate::text::{Cell, ago, facts, tilde};
use crate::times::{Zone, ZoneArgs};
use crate::ui::paint;

/// Show whether the service is installed and running
///
/// The exit code is 0 if it is running, 4 if not, and 1 if systemd does not answer.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    zone: ZoneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The fields are described in `docs/json.md`.
#[derive(Debug, Serialize)]
struct Report {
    manager: &'static str,
    installed: bool,
    #[serde(flatten)]
    service: ServiceState,
    unit: UnitState,
    path: PathBuf,
}

pub(super) fn run(args: &Args, service: &Service, ctx: &mut Context) -> Result<(), CliError> {
    let report = report(service.path(), service.unit_state()?, service.state()?);
    let (now, home) = (now(), ctx.caller.home());
    let zone = args.zone.zone();
    ctx.ui.answer(args.json, &report, |report| page(report, now, &zone, home.as_deref()))?;
    match report.service.activity {
        Activity::Active => Ok(()),
        Activity::Inactive | Activity::Starting | Activity::Stopping | Activity::Failed => {
            Err(CliError::Answered(Exit::Unreachable))
        }
    }
}

fn report(path: &Path, unit: UnitState, service: ServiceState) -> Report {
    // A masked service has a link in place of the unit.
    let unit = if service.masked { UnitState::Absent } else { unit };
    let installed = unit != UnitState::Absent;
    let service = ServiceState { enabled: installed && service.enabled, ..service };
    Report { manager: "systemd", installed, service, unit, path: path.to_owned() }
}

fn page(report: &Report, now: Timestamp, zone: &Zone, home: Option<&Path>) -> String {
    let yes_no = |yes| if yes { "yes" } else { "no" };
    let mut rows = vec![("service", state(report))];
    if let Some(since) = report.service.since {
        rows.push(("since", Cell::new(format!("{}, {}", zone.full(since), ago(since, now)))));
    }
    if let Some(pid) = report.service.pid {
        rows.push(("pid", Cell::new(pid.to_string())));
    }
    if let Some(restarts) = report.service.restarts.filter(|restarts| *restarts > 0) {
        rows.push(("restarts", Cell::new(restarts.to_string())));
    }
    if report.installed {
        rows.push(("at login", Cell::new(yes_no(report.service.enabled))));
        let linger = report.service.lingers.filter(|_| report.service.enabled);
        rows.extend(linger.map(|linger| ("at boot", Cell::new(yes_no(linger)))));
        rows.push(("unit", unit(report.unit)));
    }
    rows.push(("path", Cell::new(tilde(&report.path, home))));
    facts(rows)
}

fn state(report: &Report) -> Cell {
    match report.service.activity {
        Activity::Active => Cell::painted("active", paint::good),
        Activity::Starting => Cell::painted("starting", paint::warning),
        Activity::Stopping => Cell::painted("stopping", paint::warning),
        Activity::Failed => Cell::painted("failed", paint::bad),
        Activity::Inactive if report.service.masked => Cell::painted("masked", paint::faint),
        Activity::Inactive if report.installed => Cell::painted("inactive", paint::faint),
        Activity::Inactive => Cell::painted("not installed", paint::faint),
    }
}

fn unit(unit: UnitState) -> Cell {
    match unit {
        UnitState::Absent => Cell::painted("missing: its file was deleted", paint::warning),
        UnitState::Current => Cell::new("current"),
        UnitState::Outdated => {
            Cell::painted("outdated: `mainstay service install` updates it", paint::warning)
        }
        UnitState::Edited => Cell::painted("changed by hand", paint::warning),
        UnitState::OtherInstance => {
            Cell::painted("for another instance of Mainstay", paint::warning)
        }
    }
}
