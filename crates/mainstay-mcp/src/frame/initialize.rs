//! The handshake's payloads.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::write::json;
use super::{Edit, Span, members, splice, string};

/// The capabilities whose lists may change.
const WITH_LISTS: [&str; 3] = ["tools", "prompts", "resources"];

/// What both sides say in `initialize`: the client in its parameters, the server in its result.
#[derive(Debug, Clone)]
pub struct Handshake<'a> {
    /// The protocol version that it wants, or chose.
    pub protocol_version: Cow<'a, str>,
    capabilities: Option<&'a RawValue>,
}

impl<'a> Handshake<'a> {
    /// Reads the parameters or the result of `initialize`. None if they are invalid.
    pub fn read(payload: &'a [u8]) -> Option<Self> {
        let [version, capabilities] = members(payload, ["protocolVersion", "capabilities"]).ok()?;
        Some(Self { protocol_version: string(version?)?, capabilities })
    }

    /// Whether it has a capability, such as `sampling` or `tools`.
    pub fn has(&self, capability: &'static str) -> bool {
        let found = self.capabilities.map(|all| members(all.get().as_bytes(), [capability]));
        matches!(found, Some(Ok([Some(value)])) if !matches!(value.get(), "null" | "false"))
    }
}

/// A server's result of `initialize` as a client gets it: in the version agreed with that client,
/// and with `listChanged` for each list that the server has, because the server may be exchanged
/// while the client stays. None if the result is invalid. All other bytes are kept.
pub fn result_for_client(result: &[u8], version: &str) -> Option<Bytes> {
    let [old_version, capabilities] = members(result, ["protocolVersion", "capabilities"]).ok()?;
    let version = json(version);
    let mut edits = vec![Edit(place(old_version?, result), &version)];
    if let Some(capabilities) = capabilities {
        let lists = members(capabilities.get().as_bytes(), WITH_LISTS).ok()?;
        edits.extend(lists.into_iter().flatten().filter_map(|list| announced(list, result)));
    }
    Some(splice(result, &mut edits))
}

/// What makes a capability say that its list may change.
fn announced(capability: &RawValue, text: &[u8]) -> Option<Edit<'static>> {
    let [list_changed] = members(capability.get().as_bytes(), ["listChanged"]).ok()?;
    if let Some(list_changed) = list_changed {
        return Some(Edit(place(list_changed, text), "true"));
    }
    let inside = capability.get().strip_prefix('{')?.strip_suffix('}')?;
    let begin = Span::at(Span::of(inside.as_bytes(), text).range().start);
    let alone = inside.trim_ascii().is_empty();
    Some(Edit(begin, if alone { r#""listChanged":true"# } else { r#""listChanged":true,"# }))
}

fn place(value: &RawValue, text: &[u8]) -> Span {
    Span::of(value.get().as_bytes(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_read() {
        let text = br#"{"protocolVersion":"2025-06-18","capabilities":{"sampling":{},"roots":null},
            "clientInfo":{"name":"c\u0061","version":"1"}}"#;
        let params = Handshake::read(text).unwrap();
        assert_eq!(params.protocol_version, "2025-06-18");
        assert!(params.has("sampling") && !params.has("roots") && !params.has("elicitation"));
        assert!(!Handshake::read(br#"{"protocolVersion":"x"}"#).unwrap().has("sampling"));
        for text in [&b"[]"[..], b"{}", br#"{"protocolVersion":1}"#] {
            assert!(Handshake::read(text).is_none());
        }
    }

    #[test]
    fn a_server_is_read() {
        let text = br#"{"capabilities":{"resources":{"subscribe":true,"x":false},"logging":{}},
            "serverInfo":{"name":"s"},"protocolVersion":"2025-03-26"}"#;
        let result = Handshake::read(text).unwrap();
        assert!(result.has("logging") && !result.has("tools"));
    }

    fn check(result: &str, expected: Option<&str>) {
        let told = result_for_client(result.as_bytes(), "V");
        assert_eq!(told.as_deref(), expected.map(str::as_bytes), "{result}");
    }

    #[test]
    fn a_client_hears_its_version_and_that_lists_may_change() {
        check(
            r#"{ "protocolVersion" : "a", "capabilities":{ "tools":{ }, "logging":{} }, "x":[1] }"#,
            Some(
                r#"{ "protocolVersion" : "V", "capabilities":{ "tools":{"listChanged":true }, "logging":{} }, "x":[1] }"#,
            ),
        );
        check(
            r#"{"capabilities":{"resources":{"subscribe":true},"tools":{"listChanged":false,"y":1},"prompts":{"listChanged":true}},"protocolVersion":"a"}"#,
            Some(
                r#"{"capabilities":{"resources":{"listChanged":true,"subscribe":true},"tools":{"listChanged":true,"y":1},"prompts":{"listChanged":true}},"protocolVersion":"V"}"#,
            ),
        );
        check(
            r#"{"protocolVersion":"a","capabilities":{"tools":null,"x":{"prompts":{}}}}"#,
            Some(r#"{"protocolVersion":"V","capabilities":{"tools":null,"x":{"prompts":{}}}}"#),
        );
        check(r#"{"protocolVersion":"a"}"#, Some(r#"{"protocolVersion":"V"}"#));
        for nonsense in ["", "[]", "{}", r#"{"protocolVersion":"a","capabilities":[]}"#] {
            check(nonsense, None);
        }
    }
}
