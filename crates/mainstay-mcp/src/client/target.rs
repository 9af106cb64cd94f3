//! Where requests go, and what each of them carries.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, BytesMut};
use http::Uri;
use http::uri::InvalidUri;
use tokio_rustls::rustls::pki_types::ServerName;

use super::request::{BadHeader, put_header};

/// Where requests go, and what each of them carries. Its debug output shows neither headers nor the
/// query of the URL: they may be secrets.
#[derive(Clone)]
pub struct Target {
    pub(super) place: Place,
    /// The name in the server's certificate; `None` connects without TLS.
    pub(super) tls: Option<ServerName<'static>>,
    /// What follows the method in every request: path, version, host and fixed headers.
    pub(super) preamble: Box<[u8]>,
    shown: String,
}

/// Where a server listens.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// At one of these addresses; there is at least one.
    Addrs(Vec<SocketAddr>),
    /// At whatever address the name has.
    Name { host: String, port: u16 },
}

/// Why nothing can be sent to a target.
#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    #[error("no address is known")]
    NoAddress,
    #[error("`{}` is not a valid path", .0.escape_debug())]
    Path(String),
    /// The URL cannot be read. It may hold a secret, so it is not shown.
    #[error("the URL is not valid")]
    Url(#[source] InvalidUri),
    #[error("the URL does not begin with `http://` or `https://`")]
    Scheme,
    #[error("the URL holds a user name or a password; send them in a header")]
    UserInfo,
    #[error("`{}` is not a valid host name", .0.escape_debug())]
    Host(String),
    /// A header cannot be sent.
    #[error(transparent)]
    Header(#[from] BadHeader),
}

impl Target {
    /// A server on this machine or in its container network, without TLS. The addresses are tried
    /// in order.
    pub fn local(addrs: Vec<SocketAddr>, path: &str) -> Result<Self, BadTarget> {
        let first = addrs.first().ok_or(BadTarget::NoAddress)?.to_string();
        let preamble = preamble(path, &first)?.freeze().as_ref().into();
        let shown = format!("http://{first}{}", without_query(path));
        Ok(Self { place: Place::Addrs(addrs), tls: None, preamble, shown })
    }

    /// Our own HTTP front, over connections that are made elsewhere.
    pub fn private(path: &str) -> Result<Self, BadTarget> {
        let preamble = preamble(path, "localhost")?.freeze().as_ref().into();
        let shown = without_query(path).to_owned();
        Ok(Self { place: Place::Addrs(Vec::new()), tls: None, preamble, shown })
    }

    /// A server with a URL. The headers go with every request.
    pub fn remote<'a>(
        url: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, BadTarget> {
        let uri: Uri = url.parse().map_err(BadTarget::Url)?;
        let (scheme, authority) = match (uri.scheme_str(), uri.authority()) {
            (Some(scheme), Some(authority)) => (scheme, authority.as_str()),
            _ => return Err(BadTarget::Scheme),
        };
        let secure = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(BadTarget::Scheme),
        };
        if authority.contains('@') {
            return Err(BadTarget::UserInfo);
        }
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let bad_host = || BadTarget::Host(host.to_owned());
        let name = ServerName::try_from(host.to_owned()).map_err(|_| bad_host())?;
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let place = match host.parse::<IpAddr>() {
            Ok(ip) => Place::Addrs(vec![SocketAddr::new(ip, port)]),
            Err(_) => Place::Name { host: host.to_owned(), port },
        };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut preamble = preamble(path, authority)?;
        for (name, value) in headers {
            put_header(&mut preamble, name, value)?;
        }
        Ok(Self {
            place,
            tls: secure.then_some(name),
            preamble: preamble.freeze().as_ref().into(),
            shown: format!("{scheme}://{authority}{}", uri.path()),
        })
    }
}

/// The URL without its query.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}

fn preamble(path: &str, host: &str) -> Result<BytesMut, BadTarget> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !path.starts_with('/') || !path.bytes().all(plain) {
        return Err(BadTarget::Path(path.to_owned()));
    }
    let mut out = BytesMut::new();
    for part in [" ", path, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
        out.put_slice(part.as_bytes());
    }
    Ok(out)
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(url: &str) -> Result<Target, BadTarget> {
        Target::remote(url, [])
    }

    fn check(url: &str, place: &str, tls: bool, preamble: &str) {
        let target = remote(url).unwrap();
        assert_eq!(format!("{:?}", target.place), place, "{url}");
        assert_eq!(target.tls.is_some(), tls, "{url}");
        assert_eq!(str::from_utf8(&target.preamble).unwrap(), preamble, "{url}");
    }

    #[test]
    fn a_url_says_where_to_send_and_what() {
        check(
            "https://mcp.example.com/a/b?c=d",
            r#"Name { host: "mcp.example.com", port: 443 }"#,
            true,
            " /a/b?c=d HTTP/1.1\r\nhost: mcp.example.com\r\n",
        );
        check(
            "http://localhost:8000",
            r#"Name { host: "localhost", port: 8000 }"#,
            false,
            " / HTTP/1.1\r\nhost: localhost:8000\r\n",
        );
        check(
            "http://[::1]:9/mcp",
            "Addrs([[::1]:9])",
            false,
            " /mcp HTTP/1.1\r\nhost: [::1]:9\r\n",
        );
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused() {
        assert!(matches!(remote("not a url"), Err(BadTarget::Url(_))));
        assert!(matches!(remote("https://a/b\r\nc: d"), Err(BadTarget::Url(_))));
        assert!(matches!(remote("ftp://a/"), Err(BadTarget::Scheme)));
        assert!(matches!(remote("/mcp"), Err(BadTarget::Scheme)));
        assert!(matches!(remote("https://me:secret@a/"), Err(BadTarget::UserInfo)));
        assert!(matches!(remote("https://a..b/"), Err(BadTarget::Host(_))));
    }

    #[test]
    fn a_local_target_has_an_address_and_a_path() {
        let addrs = || vec!["127.0.0.1:8000".parse().unwrap()];
        assert!(matches!(Target::local(Vec::new(), "/mcp"), Err(BadTarget::NoAddress)));
        for path in ["", "mcp", "/a b", "/a\r\nb: c", "/a\0", "/ä", "/a#b"] {
            assert!(matches!(Target::local(addrs(), path), Err(BadTarget::Path(_))), "{path:?}");
        }
        let target = Target::local(addrs(), "/mcp").unwrap();
        assert_eq!(&*target.preamble, b" /mcp HTTP/1.1\r\nhost: 127.0.0.1:8000\r\n");
    }

    #[test]
    fn no_secret_is_shown() {
        let target =
            Target::remote("https://a/b?key=secret", [("authorization", "secret")]).unwrap();
        assert!(target.preamble.ends_with(b"authorization: secret\r\n"));
        assert_eq!(format!("{target:?} {target}"), r#"Target("https://a/b") https://a/b"#);
        let bad = Target::remote("https://a/", [("authorization", "secret\n")]).unwrap_err();
        assert!(!format!("{bad:?} {bad}").contains("secret"), "{bad}");
    }
}
