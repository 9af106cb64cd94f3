//! AI clients in commands: their ids, where their files are, and what was done to them.

mod id;
mod notice;
mod problem;
mod report;

use mainstay_api::{Around, ClientReport, Request, ServerInfo};
use mainstay_clients::table::variables;
use mainstay_core::ServerSpec;

pub(crate) use self::id::IdParser;
pub(crate) use self::notice::ReloadStep;
pub(crate) use self::problem::{Problem, is_in_file, is_managed, problems, problems_of_all};
pub(crate) use self::report::{lines, product, retry_hint};
use crate::context::{Caller, Context};

const NONE_CHOSEN: &str = "no client has been added yet: `mainstay client ls` lists them, `mainstay client add ID` adds your servers to one";

/// The home directory and the variables that determine where the caller's clients have their files.
pub(crate) fn around(caller: &Caller) -> Around {
    let set = |name: &str| Some((name.to_owned(), caller.var(name)?.to_str()?.to_owned()));
    Around {
        home: caller.home().unwrap_or_default(),
        env: variables().chain(["PATH"]).filter_map(set).collect(),
    }
}

/// Prints how to add a client, but only for the first servers.
pub(crate) async fn hint_if_no_client<'a>(
    specs: &[ServerSpec],
    reports: impl IntoIterator<Item = &'a ClientReport>,
    ctx: &mut Context,
) {
    let Some(hint) = no_client_hint(specs, reports) else { return };
    let servers: Result<Vec<ServerInfo>, _> = ctx.ask("asking the daemon", &Request::List).await;
    if servers.is_ok_and(|servers| servers.len() <= specs.len()) {
        ctx.ui.message(hint);
    }
}

/// The hint for servers that are added to all chosen clients, if there is no such client.
fn no_client_hint<'a>(
    specs: &[ServerSpec],
    reports: impl IntoIterator<Item = &'a ClientReport>,
) -> Option<&'static str> {
    let for_the_chosen = specs.iter().any(|spec| spec.clients.only.is_none());
    (for_the_chosen && reports.into_iter().next().is_none()).then_some(NONE_CHOSEN)
}

#[cfg(test)]
pub(crate) mod tests {
    use mainstay_api::ClientDone;

    pub(crate) use super::problem::tests::{client, entry};
    use super::*;

    /// A report about one client and one server.
    pub(crate) fn report(client: &str, done: ClientDone, text: &str) -> ClientReport {
        let server = "time".parse().unwrap();
        ClientReport { client: client.to_owned(), server, done, text: text.to_owned() }
    }

    #[test]
    fn servers_for_all_clients_get_a_hint_if_no_client_was_added() {
        use mainstay_core::{ClientSettings, ProxySettings, RemoteSpec, RestartPolicy, Workload};
        let server = |only: Option<&[&str]>| ServerSpec {
            name: "docs".parse().unwrap(),
            workload: Workload::Remote(RemoteSpec {
                url: "https://example.com/mcp".parse().unwrap(),
                headers: std::collections::BTreeMap::new(),
                variables: std::collections::BTreeMap::new(),
            }),
            restart: RestartPolicy::default(),
            proxy: ProxySettings::default(),
            clients: ClientSettings {
                only: only.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect()),
                refresh: None,
            },
        };
        let named = [server(Some(&[])), server(Some(&["cursor"]))];
        assert_eq!(no_client_hint(&named, []), None);
        assert_eq!(no_client_hint(&[], []), None);
        let mixed = [server(Some(&[])), server(None)];
        assert_eq!(no_client_hint(&mixed, []), Some(NONE_CHOSEN));
        let same = report("zed", ClientDone::Nothing, "");
        assert_eq!(no_client_hint(&mixed, [&same]), None);
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
