//! `mainstay service`

mod status;

use clap::Subcommand;
use mainstay_api::{DaemonInfo, Request};

use super::daemon::shut_down;
use crate::context::{Caller, Context};
use crate::error::CliError;
use crate::remote::Remote;
use crate::service::plan::{self, Step};
use crate::service::{Activity, Blueprint, Known, Service, Standing, systemd};
use crate::text::tilde;

/// Have Mainstay started when you log in, or at boot
///
/// The service is a user unit of systemd: it runs as you, and starts a daemon anew that ended by itself.
/// Your servers outlive it.
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
    /// Servers run on, in the care of a daemon that is started on demand.
    Uninstall,
    Status(status::Args),
}

/// Install the service, and start it
///
/// It gets `PATH`, `MAINSTAY_HOME`, `MAINSTAY_LISTEN`, `MAINSTAY_LOG`, `XDG_CONFIG_HOME`, `XDG_DATA_HOME` and
/// `XDG_STATE_HOME`, as far as they are set, as they are now. A daemon that runs on demand makes way for it;
/// servers run on. If the service is there already, only its unit is brought up to date: whether it runs
/// and whether it is enabled stays as you left it.
#[derive(Debug, clap::Args)]
struct InstallArgs {
    /// Print the unit, and change nothing
    #[arg(long)]
    print: bool,
    /// Replace a unit that was changed by hand, which is kept beside the new one
    #[arg(long, conflicts_with = "print")]
    force: bool,
}

pub(crate) async fn run(args: Args, ctx: &mut Context) -> Result<(), CliError> {
    let service = service_of(ctx)?;
    match args.action {
        Action::Install(InstallArgs { print: true, .. }) => ctx.ui.print_all(service.unit()),
        Action::Install(InstallArgs { print: false, force }) => install(&service, force, ctx).await,
        Action::Uninstall => uninstall(&service, ctx).await,
        Action::Status(args) => status::run(&args, &service, ctx),
    }
}

fn service_of(ctx: &Context) -> Result<Service, CliError> {
    let var = |name: &str| ctx.caller.var(name).map(ToOwned::to_owned);
    let blueprint = Blueprint::new(&ctx.exe, &ctx.instance()?.state_dir, var)?;
    Ok(Service::new(&blueprint, var)?)
}

async fn install(service: &Service, force: bool, ctx: &mut Context) -> Result<(), CliError> {
    let (standing, known) = (service.standing()?, service.look()?);
    let steps = plan::install(standing, &known, force);
    let steps = steps.map_err(|refusal| service.refused(refusal))?;
    for step in &steps {
        if let Err(error) = carry_out(*step, service, ctx).await {
            // A service that cannot start is tried again by systemd; half a one is not.
            if standing == Standing::Absent && *step != Step::Start {
                service.take_back();
                ctx.ui.say("what was begun is taken back");
            }
            return Err(error);
        }
    }
    let started = steps.contains(&Step::Start);
    for line in outcome(standing, &known, started) {
        ctx.ui.say(line);
    }
    Ok(())
}

async fn uninstall(service: &Service, ctx: &mut Context) -> Result<(), CliError> {
    let standing = service.standing()?;
    let known = match service.look() {
        // Where there is no systemd, nothing of ours can run.
        Err(_) if standing == Standing::Absent => Known::default(),
        looked => looked?,
    };
    let steps = plan::uninstall(standing, &known).map_err(|refusal| service.refused(refusal))?;
    for step in &steps {
        carry_out(*step, service, ctx).await?;
    }
    match (steps.is_empty(), known.barred) {
        (true, false) => ctx.ui.say("no service is installed"),
        (true, true) => ctx.ui.say("no service is installed; it stays masked"),
        (false, _) => ctx.ui.say("the service is uninstalled"),
    }
    Ok(())
}

/// Carries out a step, and tells of it if it is anybody's concern.
async fn carry_out(step: Step, service: &Service, ctx: &mut Context) -> Result<(), CliError> {
    let spinner = match step {
        Step::Start => Some(ctx.ui.spinner("starting the service")),
        Step::Stop => Some(ctx.ui.spinner("stopping the service")),
        Step::Keep
        | Step::Write
        | Step::Remove
        | Step::Reload
        | Step::Enable
        | Step::Disable
        | Step::MakeWay
        | Step::Adopt => None,
    };
    let done = service.carry_out(step);
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    done?;
    let said = match step {
        Step::Write => Some(format!("wrote {}", shown(service.path(), &ctx.caller))),
        Step::Keep => {
            Some(format!("the unit that was there is now {}", shown(&service.aside(), &ctx.caller)))
        }
        Step::Remove => Some(format!("removed {}", shown(service.path(), &ctx.caller))),
        Step::MakeWay => make_way(ctx).await?,
        Step::Adopt => Some(adopt(ctx).await?),
        Step::Reload | Step::Enable | Step::Disable | Step::Start | Step::Stop => None,
    };
    if let Some(said) = said {
        ctx.ui.say(said);
    }
    Ok(())
}

fn shown(path: &std::path::Path, caller: &Caller) -> String {
    tilde(path, caller.home().as_deref())
}

/// Ends the daemon that runs on demand, if there is one. The servers wait for the next.
async fn make_way(ctx: &Context) -> Result<Option<String>, CliError> {
    let remote = Remote::of(ctx)?;
    let ended = ctx.ui.waiting("ending the daemon that runs", shut_down(&remote, true)).await?;
    Ok(ended.then(|| "the daemon that ran on demand has made way; its servers run on".to_owned()))
}

/// Starts a daemon for the servers that the service left behind.
async fn adopt(ctx: &Context) -> Result<String, CliError> {
    if ctx.caller.has("MAINSTAY_NO_START") {
        return Ok("servers run on, for the next daemon to take over".to_owned());
    }
    let _daemon: DaemonInfo = ctx.ask("starting a daemon", &Request::Daemon).await?;
    Ok("servers run on, in the care of a daemon that was started on demand".to_owned())
}

/// What to tell after an install, given what was there before.
fn outcome(standing: Standing, known: &Known, started: bool) -> Vec<String> {
    let mut lines = Vec::new();
    match (standing, started) {
        (_, true) => {
            lines.push("the service runs, and will be started when you log in".to_owned());
            if known.lingers != Some(true) {
                let at_boot = systemd::START_AT_BOOT;
                lines.push(format!("to have it started at boot, without a login: `{at_boot}`"));
            }
            return lines;
        }
        (Standing::Current, false) => lines.push("the service is installed already".to_owned()),
        (
            Standing::Absent | Standing::Outdated | Standing::Edited | Standing::OtherInstance,
            false,
        ) => lines.push("the service is up to date".to_owned()),
    }
    let turn_on = systemd::ENABLE;
    match (known.activity, known.enabled) {
        (Activity::Active | Activity::Starting, _) if standing != Standing::Current => {
            lines.push(format!("it runs as before until it is restarted: `{}`", systemd::RESTART));
        }
        (Activity::Active | Activity::Starting, true) => {}
        (Activity::Active | Activity::Starting, false) => {
            lines.push(format!("it stays disabled, as you left it; `{turn_on}` enables it"));
        }
        (Activity::Inactive | Activity::Stopping | Activity::Failed, _) => {
            lines.push(format!("it stays off, as you left it; `{turn_on}` turns it on"));
        }
    }
    lines
}
