//! The `mainstay` program: arguments, output, exit codes. The work is done by the daemon.

mod cli;
mod clients;
mod commands;
mod completion;
mod context;
mod demo_server;
mod engine_host;
mod environment;
mod error;
mod failure_report;
mod images;
mod launch;
mod limits;
mod remote;
mod rights;
mod servers_file;
mod service;
mod settings;
mod table;
mod terminal_text;
mod text;
mod times;
mod transport;
mod ui;
mod wait_lines;

use std::ffi::OsString;
use std::panic;
use std::path::Path;
use std::process::{self, ExitCode};

use clap::Parser;
use mainstay_daemon::TAKE_OVER;
use mainstay_hold::shim_search::SHIM_COMMAND;

use crate::cli::{Cli, Command};
use crate::commands::update::TRIAL;
use crate::commands::{daemon, update};
use crate::context::Context;
use crate::error::{CliError, Exit};

fn main() -> ExitCode {
    abort_on_panic();
    let args: Vec<OsString> = std::env::args_os().collect();
    // Internal programs come first: there may be hundreds of shims, and the command line should not use memory there.
    match (args.get(1).and_then(|word| word.to_str()), args.get(2)) {
        (Some(SHIM_COMMAND), Some(run_dir)) => {
            return mainstay_hold::shim::main(Path::new(run_dir));
        }
        (Some("__demo-server"), None) => return demo_server::main(),
        (Some(TAKE_OVER), flag) => {
            let foreground = flag.is_some_and(|flag| flag == daemon::FOREGROUND);
            let take_over = |ctx: Context| daemon::take_over(&ctx, foreground);
            return finish(Context::from_process().and_then(take_over), false);
        }
        (Some(TRIAL), Some(dir)) => {
            let trial = |mut ctx| update::answer_trial_run(&mut ctx, Path::new(dir));
            return finish(Context::from_process().and_then(trial), false);
        }
        _ => {}
    }
    let cwd = std::env::current_dir().ok();
    match completion::answer(&args, cwd.as_deref()) {
        Ok(false) => {}
        Ok(true) => return Exit::Done.into(),
        Err(error) => return refuse(&error, false),
    }
    let json = wants_json(&args);
    match Cli::try_parse_from(args) {
        Ok(cli) => finish(run(cli.command), json),
        Err(error) => refuse(&error, json),
    }
}

/// Prints help, the version, or what is wrong with the arguments.
fn refuse(error: &clap::Error, json: bool) -> ExitCode {
    let usage = error.exit_code() != 0;
    if usage && json {
        let message = error.to_string();
        let message = message.trim_end().trim_start_matches("error: ");
        return finish(Err(CliError::usage(message)), json);
    }
    let _closed = error.print();
    if usage { Exit::Usage } else { Exit::Done }.into()
}

/// A panic ends the whole process, whichever thread or task it is in. The daemon has its own hook.
fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        report(info);
        process::abort();
    }));
}

fn run(command: Command) -> Result<(), CliError> {
    let mut ctx = Context::from_process()?;
    match command {
        // The daemon brings its own runtime.
        Command::Daemon(daemon::Args { action: daemon::Action::Run(args) }) => {
            daemon::run_daemon(&args, &ctx)
        }
        command => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(CliError::io("the runtime cannot be started"))?;
            let done = runtime.block_on(commands::run(command, &mut ctx));
            // A launch that is still waiting for its daemon must not delay the exit.
            runtime.shutdown_background();
            done
        }
    }
}

/// Whether `--json` is given, before a `--`.
fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

fn finish(result: Result<(), CliError>, json: bool) -> ExitCode {
    match result {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            let report = if json { error.json() } else { error.report() };
            if let Some(report) = report {
                ui::Ui::new().message(report);
            }
            error.exit().into()
        }
    }
}
