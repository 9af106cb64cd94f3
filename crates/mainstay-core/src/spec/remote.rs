//! A remote server: its URL, and the headers of every request.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use http::Uri;
use serde::{Deserialize, Serialize};

use crate::text::text_newtype;

/// A remote server that speaks streamable HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSpec {
    pub url: RemoteUrl,
    /// Additional headers of every request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<HeaderName, HeaderValue>,
    /// The environment variables that the values of headers came from, for `export`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<HeaderName, String>,
}

/// The URL of an MCP endpoint: http or https, with a host, and without user, password and fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RemoteUrl(String);

/// Why a text is not a [`RemoteUrl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("it is not a URL: write it as https://HOST/PATH")]
    Malformed,
    #[error("its scheme must be http or https")]
    Scheme,
    #[error("it has no host")]
    NoHost,
    #[error("its port must be between 1 and 65535")]
    Port,
    /// They would be shown with the URL.
    #[error("it contains a user or a password: send them in an `authorization` header instead")]
    Credentials,
    /// It is never sent.
    #[error("it has a fragment (`#`), which is never sent to a server")]
    Fragment,
}

text_newtype!(RemoteUrl, UrlError);

impl RemoteUrl {
    /// Whether both lead to the same scheme, host and port.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        let origin = |url: &Self| {
            let parts: Vec<_> = url.0.split(['/', '?', '#']).take(3).collect();
            parts.join("/").to_ascii_lowercase()
        };
        origin(self) == origin(other)
    }

    /// The URL without its query, which may contain a secret.
    pub fn without_query(&self) -> &str {
        self.0.split_once('?').map_or(&self.0, |(before, _)| before)
    }
}

impl FromStr for RemoteUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.contains('#') {
            return Err(UrlError::Fragment);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Malformed);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        match uri.scheme_str() {
            Some("http" | "https") => {}
            Some(_) => return Err(UrlError::Scheme),
            None => return Err(UrlError::Malformed),
        }
        let authority = uri.authority().ok_or(UrlError::NoHost)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::Credentials);
        }
        if matches!(authority.host(), "" | "[]") {
            return Err(UrlError::NoHost);
        }
        let has_port = authority.as_str().len() > authority.host().len();
        if has_port && authority.port_u16().is_none_or(|port| port == 0) {
            return Err(UrlError::Port);
        }
        Ok(Self(text.to_owned()))
    }
}

/// The name of a header that users may set, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderName(String);

/// The value of a header. It may be a secret, so debug output redacts it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderValue(String);

/// Why a header cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("{0:?} is not the name of a header")]
    BadName(String),
    /// Mainstay sets it, and a second one would contradict it.
    #[error("the header `{0}` is set by Mainstay itself")]
    Reserved(String),
    /// It could end the header, or be read in two ways.
    #[error("the value of a header is one line of ASCII text")]
    BadValue,
}

impl HeaderName {
    /// Headers of the connection or the session, which Mainstay sets.
    const RESERVED: [&str; 11] = [
        "accept",
        "connection",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "last-event-id",
        "mcp-protocol-version",
        "mcp-session-id",
        "transfer-encoding",
        "upgrade",
    ];
}

text_newtype!(HeaderName, HeaderError);

impl FromStr for HeaderName {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let name = http::HeaderName::from_str(text)
            .map_err(|_| HeaderError::BadName(text.to_owned()))?
            .as_str()
            .to_owned();
        if Self::RESERVED.contains(&name.as_str()) {
            return Err(HeaderError::Reserved(name));
        }
        Ok(Self(name))
    }
}

impl HeaderValue {
    /// The value itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for HeaderValue {
    type Err = HeaderError;

    fn from_str(text: &str) -> Result<Self, HeaderError> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for HeaderValue {
    type Error = HeaderError;

    fn try_from(text: String) -> Result<Self, HeaderError> {
        match http::HeaderValue::from_str(&text) {
            Ok(_) => Ok(Self(text)),
            Err(_) => Err(HeaderError::BadValue),
        }
    }
}

impl From<HeaderValue> for String {
    fn from(value: HeaderValue) -> Self {
        value.0
    }
}

impl fmt::Debug for HeaderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_to_an_endpoint() {
        for good in [
            "https://example.com",
            "https://example.com/mcp?team=a",
            "http://127.0.0.1:8080/x/y",
            "http://[::1]:8080/mcp",
            "HTTP://LOCALHOST/mcp",
        ] {
            assert_eq!(good.parse::<RemoteUrl>().map(String::from), Ok(good.to_owned()));
        }
        for (bad, expected) in [
            ("", UrlError::Malformed),
            ("example.com/mcp", UrlError::Malformed),
            ("/mcp", UrlError::Malformed),
            ("https://", UrlError::Malformed),
            ("https:///mcp", UrlError::Malformed),
            ("https://a b/", UrlError::Malformed),
            ("https://example.com/ä", UrlError::Malformed),
            ("https://example.com/\r\nx: y", UrlError::Malformed),
            ("ftp://example.com/", UrlError::Scheme),
            ("https://:80/mcp", UrlError::NoHost),
            ("https://example.com:0/", UrlError::Port),
            ("https://example.com:65536/", UrlError::Port),
            ("https://example.com:/", UrlError::Port),
            ("https://me:hush@example.com/", UrlError::Credentials),
            ("https://example.com/#top", UrlError::Fragment),
        ] {
            assert_eq!(bad.parse::<RemoteUrl>(), Err(expected), "{bad}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let check = |one: &str, other: &str, expected: bool| {
            let [one, other] = [one, other].map(|url| url.parse::<RemoteUrl>().unwrap());
            assert_eq!(one.has_origin_of(&other), expected, "{one:?} {other:?}");
        };
        check("https://a.example/mcp", "https://A.example/v2/mcp?x=1", true);
        check("https://a.example/mcp", "https://b.example/mcp", false);
        check("https://a.example/mcp", "http://a.example/mcp", false);
        check("https://a.example/mcp", "https://a.example:8443/mcp", false);
        check("https://a.example/mcp", "https://a.example.evil.example/mcp", false);
    }

    #[test]
    fn a_query_is_not_shown() {
        let shown = |text: &str| text.parse::<RemoteUrl>().unwrap().without_query().to_owned();
        assert_eq!(shown("https://example.com/mcp?key=hush"), "https://example.com/mcp");
        assert_eq!(shown("https://example.com/mcp"), "https://example.com/mcp");
    }

    #[test]
    fn headers_of_the_connection_and_the_session_are_ours() {
        let name = |text: &str| text.parse::<HeaderName>();
        assert_eq!(name("X-Api-Key").unwrap().as_str(), "x-api-key");
        for ours in [
            "Mcp-Session-Id",
            "MCP-Protocol-Version",
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
        ] {
            assert_eq!(name(ours), Err(HeaderError::Reserved(ours.to_ascii_lowercase())));
        }
        for none in ["", "a b", "a:b", "a\r\nb", "ä"] {
            assert_eq!(name(none), Err(HeaderError::BadName(none.to_owned())));
        }
    }

    #[test]
    fn a_value_stays_in_its_line_and_out_of_debug_output() {
        let value: HeaderValue = "Bearer hush".parse().unwrap();
        assert_eq!((value.reveal(), format!("{value:?}").as_str()), ("Bearer hush", "[redacted]"));
        for bad in ["a\r\nb: c", "a\nb", "a\0b", "\x1b"] {
            assert_eq!(bad.parse::<HeaderValue>(), Err(HeaderError::BadValue), "{bad:?}");
        }
    }
}
