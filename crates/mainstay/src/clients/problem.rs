//! Problems with clients' files and entries, and what to do about them.

use mainstay_api::{ClientEntry, ClientInfo, EntryStanding};

use crate::text::plain_line;

/// One problem.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) help: String,
    /// The server that the client waits for, if nothing else is wrong.
    pub(crate) waits_for: Option<String>,
}

/// Placeholder for the ids of the clients that have the problem.
const IDS: &str = "\u{0}";

impl Problem {
    fn of(what: String, help: String) -> Self {
        Self { what, help, waits_for: None }
    }

    fn with_ids(mut self, ids: &[&str]) -> Self {
        self.help = self.help.replace(IDS, &ids.join(" "));
        self
    }
}

/// All problems of one client.
pub(crate) fn problems(client: &ClientInfo) -> Vec<Problem> {
    general(client).into_iter().map(|problem| problem.with_ids(&[&client.id])).collect()
}

/// The same without the id of the client.
fn general(client: &ClientInfo) -> Vec<Problem> {
    // Entries are missing because of the problem with the file.
    let follows =
        |entry: &&ClientEntry| client.problem.is_some() && entry.standing == EntryStanding::Missing;
    let entries = client.entries.iter().filter(|entry| !follows(entry));
    let entries = entries.filter_map(of_entry);
    of_file(client).into_iter().chain(absence(client)).chain(entries).collect()
}

/// All problems of all clients, each with the ids of the clients that have it.
pub(crate) fn problems_of_all(clients: &[ClientInfo]) -> Vec<(Vec<&str>, Problem)> {
    let mut found: Vec<(Vec<&str>, Problem)> = Vec::new();
    for client in clients {
        for problem in general(client) {
            match found.iter_mut().find(|(_, other)| *other == problem) {
                Some((ids, _)) => ids.push(&client.id),
                None => found.push((vec![&client.id], problem)),
            }
        }
    }
    let named = found.into_iter().map(|(ids, problem)| {
        let problem = problem.with_ids(&ids);
        (ids, problem)
    });
    named.collect()
}

/// Whether Mainstay wrote the entry, also if it is not in the file now.
pub(crate) fn is_managed(entry: &ClientEntry) -> bool {
    entry.standing != EntryStanding::Foreign
}

/// Whether Mainstay wrote the entry and it is in the file.
pub(crate) fn is_in_file(entry: &ClientEntry) -> bool {
    matches!(entry.standing, EntryStanding::Ours | EntryStanding::Drifted)
}

fn of_file(client: &ClientInfo) -> Option<Problem> {
    let what = plain_line(client.problem.as_deref()?);
    let help = if client.chosen || client.entries.iter().any(is_managed) {
        format!(
            "fix this; Mainstay tries again within a minute, or at once with `mainstay client add {IDS}`"
        )
    } else {
        "fix the file; until then nothing can be added to it".to_owned()
    };
    Some(Problem::of(what, help))
}

fn absence(client: &ClientInfo) -> Option<Problem> {
    (client.chosen && !client.installed).then(|| {
        let what = "it was added, but is no longer installed".to_owned();
        Problem::of(what, format!("`mainstay client remove {IDS}` removes it"))
    })
}

fn of_entry(entry: &ClientEntry) -> Option<Problem> {
    let name = plain_line(&entry.name);
    let fix = |does: &str| format!("`mainstay client add {IDS}` {does}");
    let (what, help) = match entry.standing {
        EntryStanding::Ours => return None,
        EntryStanding::Foreign | EntryStanding::Missing if !entry.wanted => return None,
        EntryStanding::Foreign if entry.leads_to_server => return None,
        EntryStanding::Foreign => (
            format!("the file has an entry `{name}` of yours, so the server `{name}` is not added"),
            format!("rename or delete that entry, then run `mainstay client add {IDS}`"),
        ),
        EntryStanding::Missing => (
            format!("`{name}` is not in the file yet"),
            format!(
                "it is added when the server is ready (see `mainstay why {name}`); if it is, {}",
                fix("adds it")
            ),
        ),
        EntryStanding::Drifted => {
            let fields = plain_line(&entry.drifted.join(", "));
            (format!("`{name}` was changed by hand ({fields})"), fix("restores it"))
        }
        EntryStanding::Withdrawn => {
            (format!("`{name}` was removed by hand and is not added again"), fix("adds it again"))
        }
        EntryStanding::Away => (
            format!("`{name}` is removed until its server is ready"),
            format!("see `mainstay why {name}`"),
        ),
    };
    let waits = matches!(entry.standing, EntryStanding::Missing | EntryStanding::Away);
    Some(Problem { what, help, waits_for: waits.then(|| entry.name.clone()) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An entry with this standing, wanted unless it is the user's.
    pub(crate) fn entry(name: &str, standing: EntryStanding) -> ClientEntry {
        ClientEntry {
            name: name.to_owned(),
            standing,
            wanted: standing != EntryStanding::Foreign,
            leads_to_server: false,
            drifted: Vec::new(),
            says: std::collections::BTreeMap::new(),
            own_fields: Vec::new(),
        }
    }

    /// A client that is installed and has these entries.
    pub(crate) fn client(id: &str, entries: Vec<ClientEntry>) -> ClientInfo {
        let product = mainstay_clients::Client::by_id(id).unwrap().product.to_owned();
        ClientInfo {
            id: id.to_owned(),
            product,
            installed: true,
            installed_because: Some(format!("/home/me/.{id} exists")),
            chosen: false,
            file: format!("/home/me/.{id}/mcp.json").into(),
            exists: true,
            entries,
            problem: None,
        }
    }

    fn shown(client: &ClientInfo) -> String {
        let line = |problem: &Problem| format!("{}; {}", problem.what, problem.help);
        problems(client).iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_problem_has_a_help() {
        use EntryStanding as S;
        let drifted = ClientEntry { drifted: vec!["url".to_owned()], ..entry("time", S::Drifted) };
        let entries = vec![
            entry("fine", S::Ours),
            entry("yours", S::Foreign),
            ClientEntry { wanted: false, ..entry("former", S::Missing) },
            ClientEntry { wanted: true, ..entry("github", S::Foreign) },
            ClientEntry { wanted: true, leads_to_server: true, ..entry("same", S::Foreign) },
            drifted,
            entry("web", S::Withdrawn),
            entry("fs", S::Missing),
            entry("docs", S::Away),
        ];
        let mut cursor = client("cursor", entries);
        (cursor.chosen, cursor.installed) = (true, false);
        insta::assert_snapshot!(shown(&cursor), @"
        it was added, but is no longer installed; `mainstay client remove cursor` removes it
        the file has an entry `github` of yours, so the server `github` is not added; rename or delete that entry, then run `mainstay client add cursor`
        `time` was changed by hand (url); `mainstay client add cursor` restores it
        `web` was removed by hand and is not added again; `mainstay client add cursor` adds it again
        `fs` is not in the file yet; it is added when the server is ready (see `mainstay why fs`); if it is, `mainstay client add cursor` adds it
        `docs` is removed until its server is ready; see `mainstay why docs`
        ");
    }

    #[test]
    fn a_file_with_a_problem_is_one_problem() {
        let missing = ["a", "b"].map(|name| entry(name, EntryStanding::Missing));
        let mut zed = client("zed", missing.into());
        zed.problem = Some("/home/me/.zed/mcp.json is read-only; it was left as it is".to_owned());
        insta::assert_snapshot!(shown(&zed), @"/home/me/.zed/mcp.json is read-only; it was left as it is; fix this; Mainstay tries again within a minute, or at once with `mainstay client add zed`");
    }

    #[test]
    fn the_same_problem_of_several_clients_is_reported_once() {
        let away = || vec![entry("time", EntryStanding::Away)];
        let zed = client("zed", vec![entry("web", EntryStanding::Withdrawn)]);
        let clients = [client("cursor", away()), zed, client("kiro", away())];
        let found = problems_of_all(&clients);
        let ids: Vec<&[&str]> = found.iter().map(|(ids, _)| ids.as_slice()).collect();
        assert_eq!(ids, [["cursor", "kiro"].as_slice(), &["zed"]]);
    }

    #[test]
    fn a_client_that_was_not_added_has_no_entry_problems() {
        let mut cursor = client("cursor", vec![entry("yours", EntryStanding::Foreign)]);
        assert_eq!(problems(&cursor), []);
        cursor.problem = Some("it is not JSON".to_owned());
        assert!(!problems(&cursor)[0].help.contains("mainstay client add"));
    }
}
