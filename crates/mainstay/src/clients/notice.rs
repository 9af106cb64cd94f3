//! What it takes for a client to see that its file has changed.

use std::collections::BTreeSet;

use mainstay_clients::Client;

/// Those that watch their file.
const WATCHFUL: [&str; 8] =
    ["cursor", "vscode", "vscode-insiders", "vscode-server", "cline", "roo-code", "zed", "kiro"];

/// What it takes for a client to see a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing: it watches its file.
    ByItself,
    /// A press of the button beside its list of servers.
    Refresh,
    /// A command in its prompt.
    Reload,
    /// A restart. So it is with every client of which nothing better is known.
    Restart,
}

impl Notice {
    /// What the client of this id needs.
    pub(crate) fn of(id: &str) -> Self {
        match id {
            "windsurf" | "devin" => Self::Refresh,
            "gemini-cli" => Self::Reload,
            id if WATCHFUL.contains(&id) => Self::ByItself,
            _ => Self::Restart,
        }
    }

    /// What a person has to do with a product, if anything.
    pub(crate) fn to_do(self, product: &str) -> Option<String> {
        match self {
            Self::ByItself => None,
            Self::Refresh => Some(format!("press Refresh in {product}'s list of MCP servers")),
            Self::Reload => Some(format!("enter `/mcp reload` in {product}")),
            Self::Restart => Some(format!("restart {product}")),
        }
    }
}

/// What has to be done for changes in these clients' files to be seen, each client once.
pub(super) fn asked<'a>(ids: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut seen = BTreeSet::new();
    let to_do = ids.into_iter().filter(|id| seen.insert(*id)).filter_map(|id| {
        let product = Client::by_id(id).map_or(id, |client| client.product);
        Notice::of(id).to_do(product)
    });
    let to_do: Vec<String> = to_do.collect();
    (!to_do.is_empty()).then(|| format!("{} to see it", to_do.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_we_speak_of_is_one_of_the_table() {
        for id in WATCHFUL.into_iter().chain(["windsurf", "devin", "gemini-cli"]) {
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
    fn nobody_is_told_twice_or_without_need() {
        assert_eq!(asked(["cursor", "zed"]), None);
        assert_eq!(
            asked(["claude-desktop", "cursor", "claude-desktop"]).as_deref(),
            Some("restart Claude Desktop to see it")
        );
        assert_eq!(
            asked(["windsurf", "gemini-cli", "new-one"]).as_deref(),
            Some(
                "press Refresh in Windsurf's list of MCP servers and enter `/mcp reload` in Gemini \
                 CLI and restart new-one to see it"
            )
        );
    }
}
