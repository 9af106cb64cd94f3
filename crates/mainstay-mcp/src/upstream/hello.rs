//! The handshake.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{UpstreamError, error, protocol, raw};

/// The versions with a handshake, oldest first. The newest is the one offered.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// What we announce: a shared server may ask any of its clients, and the one that is asked may refuse.
const CAPABILITIES: &str = r#"{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}"#;

/// Who we say we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Our name.
    pub name: String,
    /// Our version.
    pub version: String,
}

/// What the server said to `initialize`. Stored, it lets a later daemon take up the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version agreed on.
    pub protocol_version: String,
    /// The server's name for itself.
    pub server_name: Option<String>,
    /// Its version.
    pub server_version: Option<String>,
    /// The whole result, as the server wrote it.
    pub result: Box<RawValue>,
    /// The session id that an HTTP server gave, if any.
    pub http_session: Option<String>,
}

impl Hello {
    /// Reads the result of `initialize`. A protocol version that we do not speak is an error.
    pub fn read(
        result: Box<RawValue>,
        http_session: Option<String>,
    ) -> Result<Self, UpstreamError> {
        let InitializeResult { protocol_version, server_info } = serde_json::from_str(result.get())
            .map_err(|problem| {
                let text = error::excerpt(result.get().as_bytes());
                protocol("initialize", format_args!("{text}, which cannot be read: {problem}"))
            })?;
        if !VERSIONS.contains(&protocol_version.as_str()) {
            let version = error::excerpt(protocol_version.as_bytes());
            let ours = VERSIONS.join(", ");
            return Err(protocol(
                "initialize",
                format_args!("protocol version `{version}`; supported are {ours}"),
            ));
        }
        let ServerInfo { name, version } = server_info.unwrap_or_default();
        Ok(Self {
            protocol_version,
            server_name: name,
            server_version: version,
            result,
            http_session,
        })
    }
}

/// The parameters of `initialize`.
pub fn params(identity: &Identity) -> Box<RawValue> {
    params_with(identity, CAPABILITIES)
}

/// The parameters of `initialize` for one who cannot be asked anything.
pub fn plain_params(identity: &Identity) -> Box<RawValue> {
    params_with(identity, "{}")
}

fn params_with(Identity { name, version }: &Identity, capabilities: &str) -> Box<RawValue> {
    raw(&InitializeParams {
        protocol_version: VERSIONS[VERSIONS.len() - 1],
        capabilities: serde_json::from_str(capabilities).expect("a constant that is JSON"),
        client_info: ClientInfo { name, version },
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeParams<'a> {
    protocol_version: &'a str,
    capabilities: &'a RawValue,
    client_info: ClientInfo<'a>,
}

#[derive(Serialize)]
struct ClientInfo<'a> {
    name: &'a str,
    version: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult {
    protocol_version: String,
    server_info: Option<ServerInfo>,
}

#[derive(Deserialize, Default)]
struct ServerInfo {
    name: Option<String>,
    version: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Hello, String> {
        let result = RawValue::from_string(text.to_owned()).unwrap();
        Hello::read(result, None).map_err(|error| error.to_string())
    }

    #[test]
    fn we_offer_the_newest_version_and_what_clients_may_be_asked() {
        let identity = Identity { name: "mainstay".to_owned(), version: "1".to_owned() };
        assert_eq!(
            params(&identity).get(),
            r#"{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"sampling":{},"elicitation":{}},"clientInfo":{"name":"mainstay","version":"1"}}"#,
        );
    }

    #[test]
    fn every_version_with_a_handshake_is_accepted() {
        for version in VERSIONS {
            let text = format!(r#"{{"protocolVersion":"{version}"}}"#);
            let hello = read(&text).unwrap();
            assert_eq!((hello.protocol_version.as_str(), hello.server_name), (version, None));
        }
        assert_eq!(
            read(r#"{"protocolVersion":"2026-07-28"}"#).unwrap_err(),
            "the server answered `initialize` with protocol version `2026-07-28`; \
             supported are 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25",
        );
        let error = read("[]").unwrap_err();
        assert!(error.starts_with("the server answered `initialize` with [], which"), "{error}");
    }

    #[test]
    fn a_stored_hello_is_the_same_hello() {
        let text = r#"{"protocolVersion":"2025-06-18", "serverInfo":{"name":"a","version":"2"} }"#;
        let hello = Hello { http_session: Some("s".to_owned()), ..read(text).unwrap() };
        let stored = serde_json::to_string(&hello).unwrap();
        let found: Hello = serde_json::from_str(&stored).unwrap();
        assert_eq!(found.result.get(), text);
        assert_eq!(found.server_name.as_deref(), Some("a"));
        assert_eq!(found.server_version.as_deref(), Some("2"));
        assert_eq!(found.http_session.as_deref(), Some("s"));
    }
}
