//! Clients as the command line speaks of them: their ids, where they are looked for, and what was done to
//! their files.

mod flaw;
mod notice;

use std::collections::BTreeSet;

use clap::builder::{PossibleValue, PossibleValuesParser};
use mainstay_api::{Around, ClientDone, ClientReport};
use mainstay_clients::table::variables;
use mainstay_core::ServerSpec;

pub(crate) use self::flaw::{Flaw, flaws, is_in_file, is_ours};
pub(crate) use self::notice::Notice;
use crate::context::Caller;
use crate::text::tame;
use crate::ui::paint;

const NONE_CHOSEN: &str = "no client is chosen yet: `mainstay client ls` shows those you have, \
                                      `mainstay client add ID` registers all servers";

/// Reads the id of a client. It knows them all, so that shells complete them and the one that is nearest
/// to a wrong one is suggested.
pub(crate) fn id_parser() -> PossibleValuesParser {
    let known = mainstay_clients::clients().iter();
    PossibleValuesParser::new(
        known.map(|client| PossibleValue::new(client.id).help(client.product)),
    )
}

/// Where the caller's clients are looked for.
pub(crate) fn around(caller: &Caller) -> Around {
    let set = |name: &str| Some((name.to_owned(), caller.var(name)?.to_str()?.to_owned()));
    Around {
        home: caller.home().unwrap_or_default(),
        env: variables().chain(["PATH"]).filter_map(set).collect(),
    }
}

/// What was done to clients' files, a line each, then what has to be done for it to be seen. What is
/// true of several servers, as that a file cannot be read, is told once.
pub(crate) fn lines<'a>(reports: impl IntoIterator<Item = &'a ClientReport>) -> Vec<String> {
    let mut said = BTreeSet::new();
    let told: Vec<&ClientReport> = reports
        .into_iter()
        .filter(|report| report.done.is_worth_telling() && said.insert(&report.text))
        .collect();
    let changed = told.iter().filter(|report| is_change(report.done));
    let asked = notice::asked(changed.map(|report| report.client.as_str()));
    told.iter().map(|report| line(report)).chain(asked).collect()
}

/// What is said to somebody whose servers are for the chosen clients, when there are none.
pub(crate) fn none_chosen<'a>(
    specs: &[ServerSpec],
    reports: impl IntoIterator<Item = &'a ClientReport>,
) -> Option<&'static str> {
    let for_the_chosen = specs.iter().any(|spec| spec.clients.only.is_none());
    (for_the_chosen && reports.into_iter().next().is_none()).then_some(NONE_CHOSEN)
}

fn line(report: &ClientReport) -> String {
    let text = tame(&report.text);
    match report.done {
        ClientDone::Failed | ClientDone::Left => format!("{} {text}", paint::odd("warning:")),
        ClientDone::Added
        | ClientDone::Updated
        | ClientDone::Removed
        | ClientDone::Nothing
        | ClientDone::Waits => text,
    }
}

/// Whether a file says something else than before.
fn is_change(done: ClientDone) -> bool {
    match done {
        ClientDone::Added | ClientDone::Updated | ClientDone::Removed => true,
        ClientDone::Nothing | ClientDone::Waits | ClientDone::Left | ClientDone::Failed => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::flaw::tests::{client, entry};
    use super::*;

    /// What the daemon tells of one client and one server.
    pub(crate) fn report(client: &str, done: ClientDone, text: &str) -> ClientReport {
        let server = "time".parse().unwrap();
        ClientReport { client: client.to_owned(), server, done, text: text.to_owned() }
    }

    #[test]
    fn what_was_done_is_told_and_what_is_left_to_do_once() {
        use ClientDone as D;
        let reports = [
            report("cursor", D::Added, "added time to Cursor"),
            report("codex", D::Added, "added time to Codex"),
            report("codex", D::Updated, "updated web in Codex"),
            report("zed", D::Nothing, "time is in Zed already"),
            report("factory", D::Failed, "the file\u{7} cannot be edited"),
            report("factory", D::Failed, "the file\u{7} cannot be edited"),
        ];
        let told = lines(&reports).join("\n");
        insta::assert_snapshot!(anstream::adapter::strip_str(&told), @"
        added time to Cursor
        added time to Codex
        updated web in Codex
        warning: the file cannot be edited
        restart Codex to see it
        ");
        assert_eq!(lines(&reports[3..4]), [""; 0]);
    }

    #[test]
    fn whoever_names_no_clients_hears_that_none_is_chosen() {
        use mainstay_core::{ClientSettings, ProxySettings, RemoteSpec, RestartPolicy, Workload};
        let server = |only: Option<&[&str]>| ServerSpec {
            name: "docs".parse().unwrap(),
            workload: Workload::Remote(RemoteSpec {
                url: "https://example.com/mcp".parse().unwrap(),
                headers: std::collections::BTreeMap::new(),
            }),
            restart: RestartPolicy::default(),
            proxy: ProxySettings::default(),
            clients: ClientSettings {
                only: only.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect()),
                refresh: None,
            },
        };
        let named = [server(Some(&[])), server(Some(&["cursor"]))];
        assert_eq!(none_chosen(&named, []), None);
        assert_eq!(none_chosen(&[], []), None);
        let mixed = [server(Some(&[])), server(None)];
        assert_eq!(none_chosen(&mixed, []), Some(NONE_CHOSEN));
        let same = report("zed", ClientDone::Nothing, "");
        assert_eq!(none_chosen(&mixed, [&same]), None);
    }

    #[test]
    fn clients_are_looked_for_where_the_caller_has_them() {
        let env =
            [("HOME", "/home/me"), ("CODEX_HOME", "/codex"), ("PATH", "/bin"), ("TOKEN", "hush")];
        let env = env.map(|(key, value)| (key.into(), value.into())).into();
        let around = around(&Caller { env, cwd: None });
        let expected = [("CODEX_HOME", "/codex"), ("PATH", "/bin")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!((around.home, around.env), ("/home/me".into(), expected));
        assert_eq!(super::around(&Caller::default()), Around::default());
    }
}
