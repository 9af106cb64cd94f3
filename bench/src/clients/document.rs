//! Large settings files, as people have them: mostly history, a few servers.

use std::fmt::Write as _;

use mainstay_clients::Client;

/// A client's file.
pub(super) struct Document {
    pub(super) client: &'static Client,
    pub(super) format: &'static str,
    /// Where it is, below the home directory.
    pub(super) path: &'static str,
    pub(super) text: String,
}

impl Document {
    /// One of each format, of about this size.
    pub(super) fn all(size: usize) -> [Self; 3] {
        let new = |client, format, path, text| Self {
            client: Client::by_id(client).expect("the table has this client"),
            format,
            path,
            text,
        };
        [
            new("claude-code", "JSON", ".claude.json", json(size)),
            new("zed", "JSONC", ".config/zed/settings.json", jsonc(size)),
            new("codex", "TOML", ".codex/config.toml", toml(size)),
        ]
    }
}

/// Servers in the middle, projects with their history around them.
fn json(size: usize) -> String {
    let project = |number: usize| {
        format!(
            "    \"/home/ann/code/project-{number}\": {{\n      \"allowedTools\": [],\n      \
             \"history\": [\n        {{\"display\": \"why does test {number} fail?\", \"at\": {number}}},\n        \
             {{\"display\": \"say \\\"caf\\u00e9\\\" — then stop\", \"at\": 1.5e3}}\n      ],\n      \
             \"hasTrustDialogAccepted\": true,\n      \"lastCost\": 0.25\n    }}"
        )
    };
    let (before, after) = halves(size, ",\n", project);
    format!(
        "{{\n  \"numStartups\": 412,\n  \"projects\": {{\n{before}\n  }},\n  \"mcpServers\": {{\n    \
         \"other\": {{\"type\": \"http\", \"url\": \"https://example.org/mcp\"}},\n    \
         \"local\": {{\n      \"type\": \"stdio\",\n      \"command\": \"npx\",\n      \"args\": [\"-y\", \"some-server\"]\n    }}\n  }},\n  \
         \"githubRepoPaths\": {{\n{after}\n  }}\n}}\n"
    )
}

/// The same with comments and trailing commas.
fn jsonc(size: usize) -> String {
    let setting = |number: usize| {
        format!(
            "    // What language {number} wants; see the manual, \"languages\".\n    \
             \"Language {number}\": {{\n      \"tab_size\": 4, /* not 8 */\n      \
             \"formatter\": {{ \"external\": {{ \"command\": \"fmt\", \"arguments\": [\"--stdin\", \"{number}\",] }} }},\n      \
             \"format_on_save\": \"on\",\n    }},"
        )
    };
    let (before, after) = halves(size, "\n", setting);
    format!(
        "// Settings\n{{\n  \"theme\": \"One Dark\",\n  \"languages\": {{\n{before}\n  }},\n  \
         \"context_servers\": {{\n    // mine\n    \"other\": {{ \"url\": \"https://example.org/mcp\" }},\n  }},\n  \
         \"lsp\": {{\n{after}\n  }},\n}}\n"
    )
}

/// Projects as tables of their own.
fn toml(size: usize) -> String {
    let project = |number: usize| {
        format!(
            "[projects.\"/home/ann/code/project-{number}\"]\n# since {number}\ntrust_level = \"trusted\"\n\
             notes = [\"why does test {number} fail?\", 'C:\\path', \"\"\"\nlong\n\"\"\"]\nlimits = {{ cpu = {number}, share = 0.5 }}\n"
        )
    };
    let other = |number: usize| project(number).replacen("project-", "attic-", 1);
    let before = repeat(size / 2, "\n", project);
    let after = repeat(size / 2, "\n", other);
    format!(
        "model = \"o9\"\n\n{before}\n\n[mcp_servers.other]\nurl = \"https://example.org/mcp\"\n\n{after}\n"
    )
}

/// Two maps of half the size each.
fn halves(size: usize, between: &str, one: impl Fn(usize) -> String) -> (String, String) {
    let half = repeat(size / 2, between, one);
    (half.clone(), half)
}

/// As many as it takes.
fn repeat(size: usize, between: &str, one: impl Fn(usize) -> String) -> String {
    let mut text = one(0);
    for number in 1.. {
        if text.len() >= size {
            break;
        }
        // Writing to a string cannot fail.
        write!(text, "{between}{}", one(number)).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use mainstay_clients::edit::ParsedText;

    use super::*;

    #[test]
    fn documents_can_be_read_and_are_as_large_as_asked() {
        for document in Document::all(100_000) {
            let Document { client, text, .. } = &document;
            let place = client.place(text).unwrap();
            let entries = ParsedText::parse(text, &place).unwrap().entries().unwrap();
            assert_eq!(entries[0].0, "other", "{}", client.id);
            assert!((100_000..102_000).contains(&text.len()), "{}: {}", client.id, text.len());
        }
    }
}
