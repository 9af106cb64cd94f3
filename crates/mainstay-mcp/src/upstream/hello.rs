//! The handshake.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{UpstreamError, error, protocol, raw};
use crate::version::ProtocolVersion;

/// What Mainstay announces: a shared server may ask any of its clients, and that client may refuse.
const CAPABILITIES: &str = r#"{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}"#;

/// The name and version that Mainstay gives to servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    pub name: String,
    pub version: String,
}

/// The answer of a server to `initialize`. A later daemon continues the session with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub protocol_version: String,
    pub server_name: Option<String>,
    pub server_version: Option<String>,
    /// The whole result, as the server wrote it.
    pub result: Box<RawValue>,
    /// The session id that an HTTP server gave, if any.
    pub http_session: Option<String>,
}

impl Hello {
    /// Reads the result of `initialize`. An unsupported protocol version is an error.
    pub fn read(
        result: Box<RawValue>,
        http_session: Option<String>,
    ) -> Result<Self, UpstreamError> {
        let InitializeResult { protocol_version, server_info } = serde_json::from_str(result.get())
            .map_err(|problem| {
                let text = error::excerpt(result.get().as_bytes());
                protocol("initialize", format_args!("{text}, which cannot be read: {problem}"))
            })?;
        if protocol_version.parse::<ProtocolVersion>().is_err() {
            let version = error::excerpt(protocol_version.as_bytes());
            let supported = ProtocolVersion::ALL.map(ProtocolVersion::as_str).join(", ");
            let what = format_args!("protocol version `{version}`; supported are {supported}");
            return Err(protocol("initialize", what));
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

pub fn params(identity: &Identity) -> Box<RawValue> {
    params_with(identity, CAPABILITIES)
}

/// The parameters of `initialize` without capabilities.
pub fn plain_params(identity: &Identity) -> Box<RawValue> {
    params_with(identity, "{}")
}

fn params_with(identity: &Identity, capabilities: &str) -> Box<RawValue> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        protocol_version: &'a str,
        capabilities: &'a RawValue,
        client_info: &'a Identity,
    }
    raw(&Params {
        protocol_version: ProtocolVersion::V2025_11_25.as_str(),
        capabilities: serde_json::from_str(capabilities).expect("a constant that is JSON"),
        client_info: identity,
    })
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
        for version in ProtocolVersion::ALL.map(ProtocolVersion::as_str) {
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
