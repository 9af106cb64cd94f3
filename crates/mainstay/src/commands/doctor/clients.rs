//! Checks of clients' files and of the entries in them.

use mainstay_api::{ClientInfo, Request};

use super::{Check, Level};
use crate::clients::{self, Problem, is_in_file, problems_of_all};
use crate::context::Caller;
use crate::error::CliError;
use crate::remote::Remote;

const NAME: &str = "clients";

/// The clients as the running daemon finds them. None if it has ended meanwhile.
pub(super) async fn find_clients(
    remote: &Remote,
    caller: &Caller,
) -> Result<Vec<ClientInfo>, CliError> {
    let request = Request::Clients { around: clients::around(caller) };
    Ok(remote.call_if_running(&request).await?.unwrap_or_default())
}

/// One check if there is no problem, else one per problem. Entries that wait for a failing server are left out: that
/// server has a check of its own.
pub(super) fn client_checks(
    found: &Result<Vec<ClientInfo>, CliError>,
    failing: &[&str],
) -> Vec<Check> {
    let clients = match found {
        Ok(clients) => clients,
        Err(error) => return vec![Check::failed(NAME, error.to_string(), error.advice())],
    };
    let is_told = |problem: &Problem| {
        problem.waits_for.as_deref().is_some_and(|server| failing.contains(&server))
    };
    let problems = problems_of_all(clients).into_iter().filter(|(_, problem)| !is_told(problem));
    let wrong: Vec<Check> = problems.map(check).collect();
    if wrong.is_empty() { vec![Check::new(NAME, Level::Ok, summary(clients))] } else { wrong }
}

fn check((ids, Problem { what, help, .. }): (Vec<&str>, Problem)) -> Check {
    Check::new(format!("client {}", ids.join(", ")), Level::Warn, what).help(help)
}

fn summary(clients: &[ClientInfo]) -> String {
    let installed: Vec<String> = clients
        .iter()
        .filter(|client| client.installed)
        .map(|client| {
            let count = client.entries.iter().filter(|entry| is_in_file(entry)).count();
            format!("{} ({count} of your servers)", client.id)
        })
        .collect();
    if installed.is_empty() { "none found".to_owned() } else { installed.join(", ") }
}

#[cfg(test)]
mod tests {
    use mainstay_api::EntryStanding;

    use super::*;
    use crate::clients::tests::{client, entry};

    #[test]
    fn healthy_clients_share_a_check_and_each_problem_has_its_own() {
        let lines_of = |clients: Vec<ClientInfo>| {
            let checks = client_checks(&Ok(clients), &["down"]).into_iter();
            let line = |check: Check| (check.level, format!("{}: {}", check.name, check.detail));
            checks.map(line).collect::<Vec<_>>()
        };
        assert_eq!(lines_of(Vec::new()), [(Level::Ok, "clients: none found".to_owned())]);
        let cursor = client("cursor", vec![entry("time", EntryStanding::Ours)]);
        let fine = "clients: cursor (1 of your servers), zed (0 of your servers)";
        let zed = client("zed", Vec::new());
        assert_eq!(lines_of(vec![cursor, zed.clone()]), [(Level::Ok, fine.to_owned())]);
        let broken = ClientInfo { problem: Some("line 1, column 2: odd".to_owned()), ..zed };
        let cursor = client("cursor", vec![entry("time", EntryStanding::Withdrawn)]);
        assert_eq!(
            lines_of(vec![cursor, broken]),
            [
                "client cursor: `time` was removed by hand and is not added again",
                "client zed: line 1, column 2: odd"
            ]
            .map(|line| (Level::Warn, line.to_owned()))
        );
        let waiting = ["cursor", "zed"].map(|id| {
            let entries = ["down", "late", "lost"].map(|name| {
                let standing =
                    if name == "lost" { EntryStanding::Missing } else { EntryStanding::Away };
                let mut entry = entry(name, standing);
                entry.wanted = true;
                entry
            });
            client(id, entries.into())
        });
        let lines = lines_of(waiting.into());
        assert_eq!(lines.len(), 2, "one per server: {lines:?}");
        assert!(lines[0].1.starts_with("client cursor, zed: `late` is removed until"), "{lines:?}");
        let failed = client_checks(&Err(CliError::OutputClosed), &[]);
        assert_eq!(failed[0].level, Level::Fail);
    }
}
