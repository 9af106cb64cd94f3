//! `mainstay service`

mod status;

use clap::Subcommand;
use mainstay_api::{DaemonInfo, Request};

use super::daemon::shut_down;
use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;
use crate::service::plan::{self, Step};
use crate::service::{Activity, ENABLE, RESTART, START_AT_BOOT, Service, ServiceState, UnitState};
use crate::text::tilde;

/// Start Mainstay when you log in, or at boot
///
/// The service is a systemd user unit: it runs as you, and restarts the daemon if it fails. Servers keep
/// running when the service stops.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Install(InstallArgs),
    /// Stop the service and remove it
    ///
    /// Servers keep running; a daemon is started on demand to supervise them.
    Uninstall,
    Status(status::Args),
}

/// Install the service and start it
///
/// The unit gets the current values of `PATH`, `MAINSTAY_HOME`, `MAINSTAY_LISTEN`, `MAINSTAY_LOG`,
/// `XDG_CONFIG_HOME`, `XDG_DATA_HOME` and `XDG_STATE_HOME`. A daemon that was started on demand is replaced
/// by the service; servers keep running. If the service is already installed, only its unit is updated: a
/// service that you stopped or disabled stays so.
#[derive(Debug, clap::Args)]
struct InstallArgs {
    /// Print the unit and change nothing
    #[arg(long)]
    print: bool,
    /// Replace a unit that was changed by hand; the old one is kept as mainstay.service.old
    #[arg(long, conflicts_with = "print")]
    force: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let var = |name: &str| ctx.caller.var(name).map(ToOwned::to_owned);
    let service = Service::new(&ctx.exe, &ctx.instance()?.state_dir, var)?;
    match args.action {
        Action::Install(InstallArgs { print: true, .. }) => ctx.ui.print_all(service.unit()),
        Action::Install(InstallArgs { print: false, force }) => install(&service, force, ctx).await,
        Action::Uninstall => uninstall(&service, ctx).await,
        Action::Status(args) => status::run(&args, &service, ctx),
    }
}

async fn install(service: &Service, force: bool, ctx: &mut Context) -> Result<(), CliError> {
    let (unit, state) = (service.unit_state()?, service.state()?);
    let steps = plan::install(unit, &state, force);
    let steps = steps.map_err(|refusal| service.refused(refusal))?;
    for step in &steps {
        if let Err(error) = execute(*step, service, ctx).await {
            // systemd tries again to start a service, but does not complete an installation.
            if unit == UnitState::Absent && *step != Step::Start {
                service.roll_back();
                ctx.ui.message("the incomplete installation is removed");
            }
            return Err(error);
        }
    }
    for line in outcome(unit, &state, steps.contains(&Step::Start)) {
        ctx.ui.message(line);
    }
    Ok(())
}

async fn uninstall(service: &Service, ctx: &mut Context) -> Result<(), CliError> {
    let unit = service.unit_state()?;
    let state = match service.state() {
        Err(_) if unit == UnitState::Absent => ServiceState::default(),
        state => state?,
    };
    let steps = plan::uninstall(unit, &state).map_err(|refusal| service.refused(refusal))?;
    for step in &steps {
        execute(*step, service, ctx).await?;
    }
    ctx.ui.message(match (steps.is_empty(), state.masked) {
        (true, false) => "no service is installed",
        (true, true) => "no service is installed; it stays masked",
        (false, _) => "the service is uninstalled",
    });
    Ok(())
}

async fn execute(step: Step, service: &Service, ctx: &mut Context) -> Result<(), CliError> {
    let spinner = match step {
        Step::Start => Some(ctx.ui.spinner("starting the service")),
        Step::Stop => Some(ctx.ui.spinner("stopping the service")),
        _ => None,
    };
    let done = service.execute(step);
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    done?;
    let home = ctx.caller.home();
    let unit = tilde(service.path(), home.as_deref());
    let message = match step {
        Step::Write => format!("wrote {unit}"),
        Step::KeepOld => {
            format!("the old unit is kept as {}", tilde(&service.old_unit(), home.as_deref()))
        }
        Step::Remove => format!("removed {unit}"),
        Step::StopDaemon => {
            let remote = Remote::of(ctx)?;
            let stopping = shut_down(&remote, true);
            if !ctx.ui.waiting("stopping the running daemon", stopping).await? {
                return Ok(());
            }
            "the daemon that ran on demand is stopped; its servers keep running".to_owned()
        }
        Step::StartDaemon if ctx.caller.has("MAINSTAY_NO_START") => {
            "servers keep running until the next daemon takes over".to_owned()
        }
        Step::StartDaemon => {
            let _daemon: DaemonInfo = ctx.ask("starting a daemon", &Request::Daemon).await?;
            "servers keep running, supervised by a daemon that was started on demand".to_owned()
        }
        Step::Reload | Step::Enable | Step::Disable | Step::Start | Step::Stop => return Ok(()),
    };
    ctx.ui.message(message);
    Ok(())
}

/// The messages after an install, given what was there before.
fn outcome(unit: UnitState, state: &ServiceState, started: bool) -> Vec<String> {
    if started {
        let mut lines = vec!["the service is running, and starts when you log in".to_owned()];
        if state.lingers != Some(true) {
            lines.push(format!("to start it at boot, without a login: `{START_AT_BOOT}`"));
        }
        return lines;
    }
    let is_current = unit == UnitState::Current;
    let installed =
        if is_current { "the service is already installed" } else { "the service is up to date" };
    let note = match (state.activity, state.enabled) {
        (Activity::Active | Activity::Starting, _) if !is_current => {
            Some(format!("the new unit takes effect after a restart: `{RESTART}`"))
        }
        (Activity::Active | Activity::Starting, true) => None,
        (Activity::Active | Activity::Starting, false) => {
            Some(format!("it is still disabled; `{ENABLE}` enables it"))
        }
        (Activity::Inactive | Activity::Stopping | Activity::Failed, _) => {
            Some(format!("it is still stopped; `{ENABLE}` starts it"))
        }
    };
    [installed.to_owned()].into_iter().chain(note).collect()
}
