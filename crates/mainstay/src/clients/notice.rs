//! What the user must do so that a client reads its changed file.

use mainstay_clients::Client;

use crate::text::and;

/// Clients that watch their file.
const WATCH_THEIR_FILE: [&str; 8] =
    ["cursor", "vscode", "vscode-insiders", "vscode-server", "cline", "roo-code", "zed", "kiro"];

/// What the user must do so that a client reads its file again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReloadStep {
    /// Nothing: it watches its file.
    Automatic,
    /// Press the button beside its list of servers.
    Refresh,
    /// Enter a command in its prompt.
    Reload,
    /// Restart it. This is the default for clients that are not listed here.
    Restart,
}

impl ReloadStep {
    pub(crate) fn of(id: &str) -> Self {
        match id {
            "windsurf" | "devin" => Self::Refresh,
            "gemini-cli" => Self::Reload,
            id if WATCH_THEIR_FILE.contains(&id) => Self::Automatic,
            _ => Self::Restart,
        }
    }

    /// The instruction for these products. None if no step is needed.
    pub(crate) fn to_do(self, products: &str) -> Option<String> {
        match self {
            Self::Automatic => None,
            Self::Refresh => {
                Some(format!("press Refresh in the list of MCP servers of {products}"))
            }
            Self::Reload => Some(format!("enter `/mcp reload` in {products}")),
            Self::Restart => Some(format!("restart {products}")),
        }
    }
}

/// The instruction for these clients; `to` is its purpose.
pub(super) fn required_step<'a>(
    ids: impl IntoIterator<Item = &'a str>,
    to: &str,
) -> Option<String> {
    let ids: Vec<&str> = ids.into_iter().collect();
    let kinds =
        [ReloadStep::Restart, ReloadStep::Refresh, ReloadStep::Reload, ReloadStep::Automatic];
    let to_do = kinds.into_iter().filter_map(|kind| {
        let mut products: Vec<&str> = Vec::new();
        for id in ids.iter().filter(|id| ReloadStep::of(id) == kind) {
            let product = Client::by_id(id).map_or(*id, |client| client.product);
            if !products.contains(&product) {
                products.push(product);
            }
        }
        if products.is_empty() { None } else { kind.to_do(&and(&products)) }
    });
    let to_do: Vec<String> = to_do.collect();
    (!to_do.is_empty()).then(|| format!("{} to {to}", to_do.join(", and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_with_a_reload_step_is_in_the_table() {
        for id in WATCH_THEIR_FILE.into_iter().chain(["windsurf", "devin", "gemini-cli"]) {
            assert!(Client::by_id(id).is_some(), "{id}");
        }
    }

    #[test]
    fn the_documentation_has_every_client() {
        let page = include_str!("../../../../docs/clients.md");
        for client in mainstay_clients::clients() {
            let row = format!("| `{}` | {} | ", client.id, client.product);
            assert!(page.contains(&row), "docs/clients.md lacks `{row}`");
        }
    }

    #[test]
    fn the_documentation_says_what_a_refresh_does_to_every_client() {
        let page = include_str!("../../../../docs/clients.md");
        for client in mainstay_clients::clients() {
            let (effect, evidence) = client.refresh.describe();
            let row = format!("| `{}` | {effect} | {evidence} |", client.id);
            assert!(page.contains(&row), "docs/clients.md lacks `{row}`");
        }
    }

    #[test]
    fn each_client_is_named_once_and_only_if_a_step_is_needed() {
        let check = |ids: &[&str], expected: Option<&str>| {
            assert_eq!(required_step(ids.iter().copied(), "see it").as_deref(), expected);
        };
        check(&["cursor", "zed"], None);
        check(
            &["claude-desktop", "cursor", "codex", "claude-desktop"],
            Some("restart Claude Desktop and Codex to see it"),
        );
        check(
            &["windsurf", "gemini-cli", "devin", "new-one"],
            Some(
                "restart new-one, and press Refresh in the list of MCP servers of Windsurf and \
                 Devin Desktop, and enter `/mcp reload` in Gemini CLI to see it",
            ),
        );
    }
}
