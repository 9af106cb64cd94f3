//! The commands, one file each. `start`, `stop`, `restart` and `rm` share one.

pub(crate) mod call;
pub(crate) mod change;
pub(crate) mod client;
pub(crate) mod completions;
pub(crate) mod connect;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod export;
mod handover;
pub(crate) mod import;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
mod readiness;
pub(crate) mod run;
pub(crate) mod service;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod update;
pub(crate) mod why;

use self::change::Change;
use crate::cli::Command;
use crate::context::Context;
use crate::error::CliError;

/// Runs a command.
pub(crate) async fn run(command: Command, ctx: &mut Context) -> Result<(), CliError> {
    match command {
        Command::Run(args) => run::run(*args, ctx).await,
        Command::Ls(args) => ls::run(args, ctx).await,
        Command::Status(args) => status::run(args, ctx).await,
        Command::Why(args) => why::run(args, ctx).await,
        Command::Start(args) => change::start(Change::Start, args, ctx).await,
        Command::Stop(args) => change::run(Change::Stop, args, ctx).await,
        Command::Restart(args) => change::start(Change::Restart, args, ctx).await,
        Command::Rm(args) => change::run(Change::Remove, args, ctx).await,
        Command::Logs(args) => logs::run(args, ctx).await,
        Command::Events(args) => events::run(args, ctx).await,
        Command::Tools(args) => tools::run(args, ctx).await,
        Command::Call(args) => call::run(args, ctx).await,
        Command::Connect(args) => connect::run(args, ctx).await,
        Command::Client(args) => client::run(args, ctx).await,
        Command::Token(args) => token::run(args, ctx).await,
        Command::Export(args) => export::run(args, ctx).await,
        Command::Import(args) => import::run(args, ctx).await,
        Command::Daemon(args) => daemon::run(args, ctx).await,
        Command::Service(args) => service::run(args, ctx).await,
        Command::Update(args) => update::run(args, ctx).await,
        Command::Doctor(args) => doctor::run(args, ctx).await,
        Command::Completions(args) => completions::run(&args, ctx),
        Command::Man(args) => man::run(&args, ctx),
        Command::Demo(args) => demo::run(args, ctx).await,
    }
}
