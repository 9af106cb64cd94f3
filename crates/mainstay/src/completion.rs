//! Completion in shells: the script that `mainstay completions` prints runs this program for each completion.
//!
//! Names of servers and tools come from the running daemon, if it answers in time. No daemon is started.

use std::any::TypeId;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use mainstay_api::{Request, ServerInfo};
use mainstay_core::ServerName;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli;
use crate::context::Context;
use crate::remote::Remote;

/// The variable with which the script asks for completions.
const VARIABLE: &str = "MAINSTAY_COMPLETE";

/// Completion must not delay the shell for longer.
const LIMIT: Duration = Duration::from_secs(1);

/// Answers a shell's request for completions. False if this is not one.
pub(crate) fn answer(args: &[OsString], cwd: Option<&Path>) -> Result<bool, clap::Error> {
    let typed = typed(args);
    CompleteEnv::with_factory(|| definition(&typed)).var(VARIABLE).try_complete(args, cwd)
}

/// The script for a shell.
pub(crate) fn script(shell: &str) -> Result<Vec<u8>, io::Error> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let shell = shells.completer(shell).ok_or(io::ErrorKind::Unsupported)?;
    shell.write_registration(VARIABLE, "mainstay", "mainstay", "mainstay", &mut script)?;
    Ok(script)
}

/// The command line with the completions of its arguments. clap knows the ids of clients already.
fn definition(typed: &[String]) -> clap::Command {
    let server = called_server(typed);
    // `mut_arg` would move the argument behind the others.
    let with_tools = |arg: clap::Arg| {
        let server = server.clone();
        match arg.get_id().as_str() {
            "tool" => arg.add(ArgValueCandidates::new(move || tools(server.as_ref()))),
            _ => arg,
        }
    };
    with_servers(cli::definition()).mut_subcommands(|command| match command.get_name() {
        "call" => command.mut_args(with_tools),
        _ => command,
    })
}

/// The command with names of servers for each argument that takes one.
fn with_servers(command: clap::Command) -> clap::Command {
    let add = |arg: clap::Arg| {
        if arg.get_value_parser().type_id() == TypeId::of::<ServerName>() {
            arg.add(ArgValueCandidates::new(servers))
        } else {
            arg
        }
    };
    command.mut_args(add).mut_subcommands(with_servers)
}

/// The words of the line that is completed, without the program's name.
fn typed(args: &[OsString]) -> Vec<String> {
    let words = args.iter().skip_while(|word| *word != "--").skip(2);
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The server whose tool is to be called.
fn called_server(typed: &[String]) -> Option<ServerName> {
    let mut words = typed.iter().filter(|word| !word.starts_with('-'));
    words.next().filter(|word| *word == "call")?;
    words.next()?.parse().ok()
}

fn servers() -> Vec<CompletionCandidate> {
    let servers: Option<Vec<ServerInfo>> = ask(&Request::List);
    let candidate = |server: ServerInfo| {
        CompletionCandidate::new(server.name.as_str()).help(Some(server.status.as_str().into()))
    };
    servers.into_iter().flatten().map(candidate).collect()
}

fn tools(server: Option<&ServerName>) -> Vec<CompletionCandidate> {
    let tools: Option<Vec<Value>> =
        server.and_then(|name| ask(&Request::Tools { name: name.clone() }));
    let names = tools.into_iter().flatten();
    names.filter_map(|tool| Some(CompletionCandidate::new(tool.get("name")?.as_str()?))).collect()
}

/// The answer of the daemon, if there is one and it answers in time.
fn ask<T: DeserializeOwned>(request: &Request) -> Option<T> {
    let asked = async {
        let remote = Remote::of(&Context::from_process()?)?;
        remote.call_if_running(request).await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(LIMIT, asked).await });
    runtime.shutdown_background();
    answer.ok()?.ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_those_of_the_server_that_was_typed() {
        let check = |line: &str, expected: Option<&str>| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let expected = expected.map(|name| name.parse().unwrap());
            assert_eq!(called_server(&typed(&args)), expected, "{line}");
        };
        check("mainstay -- mainstay call time ad", Some("time"));
        check("mainstay -- mainstay call --json time ad", Some("time"));
        check("mainstay -- mainstay tools time ad", None);
        check("mainstay -- mainstay call", None);
        check("mainstay", None);
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(script.contains(VARIABLE), "{shell}: {script}");
        }
        definition(&[]).debug_assert();
    }
}
