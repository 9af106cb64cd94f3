//! Protects against pages in browsers (DNS rebinding).
//!
//! The listener is on loopback, but any page can make a browser send requests there, under a host name that resolves
//! to a loopback address. So the Host header must name a loopback host, and the Origin header a loopback page.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use hyper::http::request::Parts;

/// What requests with a token may name, in addition to loopback.
#[derive(Debug, Clone, Default)]
pub struct Allowed {
    /// Host names, with or without a port. IP addresses are always allowed.
    pub hosts: Vec<String>,
}

/// Checks the Host and Origin headers. `allowed` is `Some` only for requests with a token.
pub(super) fn admits(head: &Parts, allowed: Option<&Allowed>) -> bool {
    let named = head.uri.authority().is_none_or(|name| allows_host(name.as_str(), allowed));
    named
        && one_host(&head.headers).is_some_and(|host| allows_host(host, allowed))
        && texts(&head.headers, &ORIGIN).all(|origin| origin.is_some_and(allows_origin))
}

/// DNS rebinding needs a host name, so IP addresses are safe.
fn allows_host(host: &str, allowed: Option<&Allowed>) -> bool {
    let Some(name) = name_of(host) else { return false };
    let is_host =
        |entry: &String| entry.eq_ignore_ascii_case(name) || entry.eq_ignore_ascii_case(host);
    let allows = |allowed: &Allowed| address(name).is_some() || allowed.hosts.iter().any(is_host);
    is_loopback(name) || allowed.is_some_and(allows)
}

/// `null`, the origin of pages without one, names no host and is refused like any other.
pub(super) fn allows_origin(origin: &str) -> bool {
    let host = || origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host().and_then(name_of).is_some_and(is_loopback)
}

/// The name in `NAME` or `NAME:PORT`; nothing if it is neither.
fn name_of(host: &str) -> Option<&str> {
    // Faster than `str::find` for names this short.
    let find = |byte: u8| host.bytes().position(|it| it == byte);
    let (name, port) = match find(b']') {
        Some(end) if host.starts_with('[') => host.split_at(end + 1),
        Some(_) => return None,
        None => host.split_at(find(b':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| digits.parse::<u16>().is_ok() && !digits.starts_with('+');
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(name)
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || address(name).is_some_and(|ip| ip.is_loopback())
}

/// The IP address, if the host is written as one.
fn address(name: &str) -> Option<IpAddr> {
    let v6 = || name.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let v4 = || name.parse::<Ipv4Addr>().ok();
    v4().map(IpAddr::V4).or_else(|| v6().map(IpAddr::V6))
}

fn one_host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = texts(headers, &HOST);
    hosts.next().flatten().filter(|_| hosts.next().is_none())
}

fn texts<'a>(
    headers: &'a HeaderMap,
    name: &hyper::header::HeaderName,
) -> impl Iterator<Item = Option<&'a str>> {
    headers.get_all(name).into_iter().map(|value: &HeaderValue| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn allowed() -> Allowed {
        Allowed { hosts: vec!["box.lan".to_owned(), "gate.lan:8080".to_owned()] }
    }

    /// Checks a request without a token, and one with.
    fn check(uri: &str, headers: &[(&str, &str)], expected: bool) {
        check_each(uri, headers, expected, expected);
    }

    fn check_each(uri: &str, headers: &[(&str, &str)], without: bool, with: bool) {
        let request = headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| {
            request.header(*name, *value)
        });
        let (head, ()) = request.body(()).unwrap().into_parts();
        assert_eq!(admits(&head, None), without, "{uri} {headers:?}");
        assert_eq!(admits(&head, Some(&allowed())), with, "{uri} {headers:?} with a token");
    }

    #[test]
    fn only_our_own_names_are_hosts() {
        for host in [
            "localhost",
            "LocalHost:7433",
            "127.0.0.1",
            "127.0.0.1:7433",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:7433",
        ] {
            check("/a/mcp", &[("host", host)], true);
        }
        for host in [
            "box.lan",
            "BOX.lan:99",
            "gate.lan:8080",
            "172.17.0.1:7433",
            "128.0.0.1",
            "0.0.0.0",
            "[::2]",
        ] {
            check_each("/a/mcp", &[("host", host)], false, true);
        }
        for host in [
            "",
            "evil.com",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "evil.com:7433",
            "[::1",
            "::1",
            "localhost:",
            "localhost:x",
            "localhost:+1",
            "localhost:99999",
            "user@localhost",
            "[::1]x",
            "gate.lan",
            "gate.lan:81",
            "2130706433",
            "[localhost]",
            "localhost]",
        ] {
            check("/a/mcp", &[("host", host)], false);
        }
        check("/a/mcp", &[], false);
        check("/a/mcp", &[("host", "localhost"), ("host", "evil.com")], false);
        check("http://evil.com/a/mcp", &[("host", "localhost")], false);
        check("http://localhost:1/a/mcp", &[("host", "localhost")], true);
    }

    #[test]
    fn only_loopback_pages_are_origins() {
        let with = |origin| [("host", "localhost"), ("origin", origin)];
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://127.0.0.1:8443",
            "http://[::1]:5",
        ] {
            check("/a/mcp", &with(origin), true);
        }
        for origin in [
            "null",
            "",
            "http://evil.com",
            "https://localhost.evil.com",
            "file://localhost",
            "localhost",
            "http://localhost/",
            "http://localhost@evil.com",
            "http://192.168.1.2",
            "chrome-extension://abc",
            "vscode-webview://x",
            "http://box.lan",
        ] {
            check("/a/mcp", &with(origin), false);
        }
        let two =
            [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://evil.com")];
        check("/a/mcp", &two, false);
    }
}
