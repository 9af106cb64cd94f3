//! `mainstay doctor --restore`: restores the list of servers from its copy.

use jiff::Timestamp;
use mainstay_daemon::{Restored, StoreError, restore};

use crate::commands::daemon;
use crate::context::{Context, now};
use crate::error::CliError;
use crate::remote::Remote;
use crate::text::ago;

pub(super) async fn run(empty: bool, ctx: &mut Context) -> Result<(), CliError> {
    let restored = restore(&ctx.instance()?, empty).map_err(|error| failed(&error))?;
    for line in report(&restored, now()) {
        ctx.ui.message(line);
    }
    if restored != Restored::Intact {
        // A running daemon has the lost file open and would continue to write to it.
        let running = Remote::of(ctx)?.inspect().await;
        match running {
            Ok(Some(_)) => daemon::reload(ctx).await?,
            Ok(None) | Err(_) => ctx.ui.message("the next command starts the daemon"),
        }
    }
    Ok(())
}

fn failed(error: &StoreError) -> CliError {
    CliError::Failed { message: error.to_string(), help: error.help() }
}

fn report(restored: &Restored, now: Timestamp) -> Vec<String> {
    match restored {
        Restored::Intact => {
            vec!["the list of servers is not damaged; nothing was changed".to_owned()]
        }
        Restored::FromCopy { copy, made_at, servers } => {
            let age = made_at.map(|at| format!(", made {}", ago(at, now))).unwrap_or_default();
            let servers = match &servers[..] {
                [] => "no servers".to_owned(),
                servers => servers.join(", "),
            };
            vec![format!("restored from `{}`{age}: {servers}", copy.display())]
        }
        Restored::Empty { running, containers, copies } => {
            let mut lines = vec!["there are no servers now".to_owned()];
            for copy in copies {
                lines.push(format!("the previous list is kept as `{}`", copy.display()));
            }
            if !running.is_empty() {
                let running = running.join(", ");
                lines.push(format!("still running until the next daemon starts: {running}"));
            }
            if !containers.is_empty() {
                let names: Vec<String> =
                    containers.iter().map(|name| format!("mainstay-{name}")).collect();
                lines.push(format!(
                    "containers may be left over: `docker rm -f {}` removes them",
                    names.join(" ")
                ));
            }
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(restored: &Restored, expected: &[&str]) {
        let now = Timestamp::from_second(3600).unwrap();
        assert_eq!(report(restored, now), expected);
    }

    #[test]
    fn the_report_names_restored_and_running_servers() {
        let from_copy = |servers: &[&str]| Restored::FromCopy {
            copy: "/s/state.db.backup".into(),
            made_at: Some(Timestamp::from_second(0).unwrap()),
            servers: servers.iter().map(|name| (*name).to_owned()).collect(),
        };
        check(
            &from_copy(&["files", "time"]),
            &["restored from `/s/state.db.backup`, made 1 h ago: files, time"],
        );
        check(&from_copy(&[]), &["restored from `/s/state.db.backup`, made 1 h ago: no servers"]);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        check(
            &Restored::Empty {
                running: names(&["time"]),
                containers: names(&["a", "b"]),
                copies: vec!["/s/state.db.backup.20261117T203000Z".into()],
            },
            &[
                "there are no servers now",
                "the previous list is kept as `/s/state.db.backup.20261117T203000Z`",
                "still running until the next daemon starts: time",
                "containers may be left over: `docker rm -f mainstay-a mainstay-b` removes them",
            ],
        );
    }
}
