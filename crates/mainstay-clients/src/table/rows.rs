//! The rows. Paths, keys and formats are from the clients' source code where it is public.

use std::time::Duration;

use super::{
    Candidate, Client, Evidence, Keys, LockProtocol, PathTemplate, Refresh, Root, Slot, Template,
};
use crate::edit::Format;

use Evidence::{Path, Program};

const MCP_SERVERS: Keys = Keys::At(&["mcpServers"]);

const PLAIN_HTTP: Template = &[("url", Slot::Url)];
const PLAIN_STDIO: Template = &[("command", Slot::Command), ("args", Slot::Args)];
const PLAIN_OWNED: &[&str] = &["url", "command", "args"];

const TYPED_HTTP: Template = &[("type", Slot::Text("http")), ("url", Slot::Url)];
const TYPED_STDIO: Template =
    &[("type", Slot::Text("stdio")), ("command", Slot::Command), ("args", Slot::Args)];
const TYPED_OWNED: &[&str] = &["type", "url", "command", "args"];

/// The defaults of all rows.
const USUAL: Client = Client {
    id: "",
    product: "",
    overrides: &[],
    files: &[],
    format: Format::Json,
    keys: MCP_SERVERS,
    http: Some(PLAIN_HTTP),
    stdio: PLAIN_STDIO,
    owned: PLAIN_OWNED,
    evidence: &[],
    lock: None,
    refresh: Refresh::Useless("none that it helps"),
    rejects_bom: false,
};

/// The defaults of the rows of VS Code.
const VSCODE: Client = Client {
    format: Format::Jsonc,
    keys: Keys::At(&["servers"]),
    http: Some(TYPED_HTTP),
    stdio: TYPED_STDIO,
    owned: TYPED_OWNED,
    ..USUAL
};

pub(super) const CLIENTS: &[Client] = &[
    Client {
        id: "cursor",
        product: "Cursor",
        files: &[file(home(".cursor/mcp.json"))],
        evidence: &[Path(home(".cursor")), Program("cursor")],
        refresh: Refresh::Helps(
            "ToolHive's experience, documentation: it keeps a stale session (cursor/cursor#3640) until its entry changes",
        ),
        ..USUAL
    },
    Client {
        id: "vscode",
        product: "VS Code",
        files: &[file(config("Code/User/mcp.json"))],
        evidence: &[Path(config("Code/User")), Program("code")],
        refresh: Refresh::Harms("trial with 1.139.1: a running server was stopped and stayed so"),
        ..VSCODE
    },
    Client {
        id: "vscode-insiders",
        product: "VS Code Insiders",
        files: &[file(config("Code - Insiders/User/mcp.json"))],
        evidence: &[Path(config("Code - Insiders/User")), Program("code-insiders")],
        refresh: Refresh::Harms("the same program as VS Code"),
        ..VSCODE
    },
    Client {
        id: "vscode-server",
        product: "VS Code Server",
        files: &[file(home(".vscode-server/data/User/mcp.json"))],
        evidence: &[Path(home(".vscode-server"))],
        refresh: Refresh::Harms("the same program as VS Code"),
        ..VSCODE
    },
    Client {
        id: "cline",
        product: "Cline",
        overrides: &[
            variable("CLINE_MCP_SETTINGS_PATH", ""),
            variable("CLINE_DATA_DIR", "settings/cline_mcp_settings.json"),
            variable("CLINE_DIR", "data/settings/cline_mcp_settings.json"),
        ],
        // The current extension reads only the first file. It imports the second one once, so later changes of that one
        // have no effect.
        files: &[
            Candidate {
                file: home(".cline/data/settings/cline_mcp_settings.json"),
                applies_if: home(".cline/data"),
            },
            Candidate {
                file: config(
                    "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
                ),
                applies_if: config("Code/User/globalStorage/saoudrizwan.claude-dev"),
            },
        ],
        // An entry with a URL and no type means SSE.
        http: Some(&[("type", Slot::Text("streamableHttp")), ("url", Slot::Url)]),
        owned: TYPED_OWNED,
        evidence: &[
            Path(home(".cline/data")),
            Path(config("Code/User/globalStorage/saoudrizwan.claude-dev")),
        ],
        lock: Some(LockProtocol { has_marker: true, stale: Duration::from_secs(10) }),
        refresh: Refresh::Helps(
            "source, and a trial of its file watcher: it reconnects the entries that changed",
        ),
        ..USUAL
    },
    Client {
        id: "roo-code",
        product: "Roo Code",
        files: &[file(config(
            "Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
        ))],
        http: Some(&[("type", Slot::Text("streamable-http")), ("url", Slot::Url)]),
        owned: TYPED_OWNED,
        evidence: &[Path(config("Code/User/globalStorage/rooveterinaryinc.roo-cline"))],
        // It refreshes a lock that it holds only every 10 s.
        lock: Some(LockProtocol { has_marker: false, stale: Duration::from_secs(31) }),
        refresh: Refresh::Helps(
            "source: it watches its file and reconnects the entries that changed",
        ),
        ..USUAL
    },
    Client {
        id: "claude-code",
        product: "Claude Code",
        overrides: &[variable("CLAUDE_CONFIG_DIR", ".claude.json")],
        files: &[file(home(".claude.json"))],
        http: Some(TYPED_HTTP),
        stdio: TYPED_STDIO,
        owned: TYPED_OWNED,
        evidence: &[Path(home(".claude")), Program("claude")],
        lock: Some(LockProtocol { has_marker: false, stale: Duration::from_secs(10) }),
        refresh: Refresh::Useless("trial: a session reads its file when it begins"),
        ..USUAL
    },
    Client {
        id: "claude-desktop",
        product: "Claude Desktop",
        files: &[file(config("Claude/claude_desktop_config.json"))],
        http: None,
        evidence: &[Path(config("Claude"))],
        refresh: Refresh::Useless("issue reports: it reads its file at start"),
        rejects_bom: true,
        ..USUAL
    },
    Client {
        id: "codex",
        product: "Codex",
        overrides: &[variable("CODEX_HOME", "config.toml")],
        files: &[file(home(".codex/config.toml"))],
        format: Format::Toml,
        keys: Keys::At(&["mcp_servers"]),
        evidence: &[Path(home(".codex")), Program("codex")],
        refresh: Refresh::Useless("source: it reads its file at start"),
        ..USUAL
    },
    Client {
        id: "gemini-cli",
        product: "Gemini CLI",
        files: &[file(home(".gemini/settings.json"))],
        format: Format::Jsonc,
        http: Some(&[("url", Slot::Url), ("type", Slot::Text("http"))]),
        owned: TYPED_OWNED,
        // Its directory alone may be Antigravity's, so it proves nothing.
        evidence: &[Program("gemini")],
        refresh: Refresh::Useless("source: it reads its file at start and on `/mcp reload`"),
        ..USUAL
    },
    Client {
        id: "qwen-code",
        product: "Qwen Code",
        files: &[file(home(".qwen/settings.json"))],
        format: Format::Jsonc,
        http: Some(&[("httpUrl", Slot::Url)]),
        owned: &["httpUrl", "command", "args"],
        evidence: &[Path(home(".qwen")), Program("qwen")],
        refresh: Refresh::Useless("source, a fork of Gemini CLI: it reads its file at start"),
        ..USUAL
    },
    Client {
        id: "opencode",
        product: "OpenCode",
        files: &[
            file(config("opencode/opencode.jsonc")),
            file(config("opencode/opencode.json")),
            file(config("opencode/config.json")),
        ],
        format: Format::Jsonc,
        keys: Keys::Either {
            flat: &["mcp"],
            nested: &["mcp", "servers"],
            markers: &["servers", "timeout"],
        },
        http: Some(&[("type", Slot::Text("remote")), ("url", Slot::Url)]),
        stdio: &[("type", Slot::Text("local")), ("command", Slot::CommandLine)],
        owned: &["type", "url", "command"],
        evidence: &[Path(config("opencode")), Program("opencode")],
        refresh: Refresh::Useless("trial: a session reads its file when it begins"),
        ..USUAL
    },
    Client {
        id: "zed",
        product: "Zed",
        overrides: &[variable("FLATPAK_XDG_CONFIG_HOME", "zed/settings.json")],
        files: &[file(config("zed/settings.json"))],
        format: Format::Jsonc,
        keys: Keys::At(&["context_servers"]),
        evidence: &[Path(config("zed")), Program("zed"), Program("zeditor")],
        refresh: Refresh::Helps(
            "source: it restarts the servers whose entries changed, and keeps a stale session otherwise (zed#57180)",
        ),
        ..USUAL
    },
    Client {
        id: "windsurf",
        product: "Windsurf",
        files: &[file(home(".codeium/windsurf/mcp_config.json"))],
        http: Some(&[("serverUrl", Slot::Url)]),
        owned: &["serverUrl", "command", "args"],
        evidence: &[Path(home(".codeium/windsurf"))],
        refresh: Refresh::Useless("documentation: it reads its file on Refresh"),
        ..USUAL
    },
    // Windsurf's name since June 2026, with a file of its own.
    Client {
        id: "devin",
        product: "Devin Desktop",
        files: &[file(home(".config/devin/mcp_config.json"))],
        evidence: &[Path(home(".config/devin"))],
        refresh: Refresh::Useless("documentation: it reads its file on Refresh"),
        ..USUAL
    },
    Client {
        id: "copilot-cli",
        product: "GitHub Copilot CLI",
        overrides: &[variable("COPILOT_HOME", "mcp-config.json")],
        files: &[file(home(".copilot/mcp-config.json"))],
        http: Some(TYPED_HTTP),
        stdio: &[("type", Slot::Text("local")), ("command", Slot::Command), ("args", Slot::Args)],
        owned: TYPED_OWNED,
        evidence: &[Path(home(".copilot")), Program("copilot")],
        refresh: Refresh::Useless("source: it reads its file at start and on demand"),
        ..USUAL
    },
    Client {
        id: "kiro",
        product: "Kiro",
        files: &[file(home(".kiro/settings/mcp.json"))],
        evidence: &[Path(home(".kiro")), Program("kiro")],
        refresh: Refresh::Helps("documentation: it connects when its file is saved"),
        ..USUAL
    },
    Client {
        id: "lm-studio",
        product: "LM Studio",
        files: &[file(home(".lmstudio/mcp.json"))],
        evidence: &[Path(home(".lmstudio"))],
        ..USUAL
    },
    Client {
        id: "factory",
        product: "Factory Droid",
        files: &[file(home(".factory/mcp.json"))],
        http: Some(TYPED_HTTP),
        stdio: TYPED_STDIO,
        owned: TYPED_OWNED,
        evidence: &[Path(home(".factory")), Program("droid")],
        ..USUAL
    },
];

const fn home(path: &'static str) -> PathTemplate {
    PathTemplate { root: Root::Home, path }
}

const fn config(path: &'static str) -> PathTemplate {
    PathTemplate { root: Root::Config, path }
}

const fn variable(name: &'static str, path: &'static str) -> PathTemplate {
    PathTemplate { root: Root::Variable(name), path }
}

/// A file that applies if it exists.
const fn file(template: PathTemplate) -> Candidate {
    Candidate { file: template, applies_if: template }
}
