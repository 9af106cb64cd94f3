//! Identifies callers: local users by the owner of their socket, all others by a token.
//!
//! A listener serves its own user and root. All other callers need a token, and so does every caller at an
//! address that other machines can reach. The owner is looked up once per connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hyper::header::{AUTHORIZATION, HeaderMap};
use mainstay_core::lock;
use mainstay_hold::socket_owners::SocketOwners;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Every token begins with this.
const PREFIX: &str = "mst_";

/// The length of the random part of a token, in hexadecimal digits.
const DIGITS: usize = 64;

/// The uid that the kernel reports for owners outside this user namespace.
const OVERFLOW_UID: u32 = 65_534;

/// Which callers a listener serves.
#[derive(Debug, Clone)]
pub struct Callers {
    /// The user who runs the daemon.
    pub uid: u32,
    /// Whether root is served without a token.
    pub admit_root: bool,
    /// Whether every local user is served without a token.
    pub allow_other_users: bool,
    /// Tokens that admit all other callers.
    pub tokens: Arc<Tokens>,
}

/// The caller at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    /// May call every server.
    Trusted,
    /// Needs a token, for this reason.
    NeedsToken(TokenReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenReason {
    #[error("this connection belongs to another user of this machine (uid {0})")]
    OtherUser(u32),
    #[error("the user of this connection is unknown")]
    Unknown,
    #[error("this address serves only requests with a token")]
    PublicAddress,
}

impl Callers {
    /// Classifies the owner of a connection to a loopback address.
    fn classify(&self, owner: Option<u32>) -> Caller {
        match owner {
            _ if self.allow_other_users => Caller::Trusted,
            Some(OVERFLOW_UID) | None => Caller::NeedsToken(TokenReason::Unknown),
            Some(uid) if uid == self.uid => Caller::Trusted,
            Some(0) if self.admit_root => Caller::Trusted,
            Some(uid) => Caller::NeedsToken(TokenReason::OtherUser(uid)),
        }
    }
}

/// Looks up the callers of a listener.
#[derive(Debug)]
pub(super) struct CallerLookup {
    callers: Callers,
    /// `None` if the result does not depend on the owner.
    owners: Option<SocketOwners>,
    is_public: bool,
}

impl CallerLookup {
    /// For a listener at this address. An unknown address is treated as public.
    pub(super) fn new(callers: Callers, listener: Option<SocketAddr>) -> Self {
        let loopback = listener.filter(|addr| addr.ip().to_canonical().is_loopback());
        let asked = loopback.filter(|_| !callers.allow_other_users);
        Self { owners: asked.map(SocketOwners::new), callers, is_public: loopback.is_none() }
    }

    /// The caller of a connection between these two addresses.
    pub(super) fn caller(&mut self, local: SocketAddr, peer: SocketAddr) -> Caller {
        if self.is_public {
            return Caller::NeedsToken(TokenReason::PublicAddress);
        }
        self.callers.classify(self.owners.as_mut().and_then(|owners| owners.peer(local, peer)))
    }
}

/// The tokens that admit callers. They can be replaced at any time.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<Arc<[Token]>>);

/// A token, known only by its hash.
#[derive(Debug, Clone)]
pub struct Token {
    /// Its [`digest`].
    pub digest: [u8; 32],
    /// The server it admits to; `None` means all servers.
    pub server: Option<String>,
}

impl Tokens {
    /// Replaces all tokens. Takes effect with the next request.
    pub fn replace(&self, tokens: Vec<Token>) {
        *lock(&self.0) = tokens.into();
    }

    /// Removes the tokens that admit to this server only.
    pub fn forget_server(&self, server: &str) {
        let mut tokens = lock(&self.0);
        let is_for = |token: &&Token| token.server.as_deref() == Some(server);
        *tokens = tokens.iter().filter(|token| !is_for(token)).cloned().collect();
    }

    /// Whether the headers carry a token, valid or not.
    pub(super) fn is_sent(headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(is_token)
    }

    /// Whether the headers carry a token that admits to this server.
    pub(super) fn admit(&self, headers: &HeaderMap, server: Option<&str>) -> bool {
        let Some(presented) = bearer(headers).filter(|token| is_token(token)) else { return false };
        let presented = digest(presented);
        let tokens = Arc::clone(&lock(&self.0));
        let fits = |token: &Token| token.server.is_none() || token.server.as_deref() == server;
        // All tokens are compared, so that timing reveals nothing.
        let equal = tokens
            .iter()
            .filter(|token| fits(token))
            .fold(Choice::from(0), |equal, token| equal | token.digest.ct_eq(&presented));
        equal.into()
    }
}

/// Identifies the token in the headers, if it admits to this server. The token cannot be found from it.
pub(super) fn token_id(tokens: &Tokens, headers: &HeaderMap, server: &str) -> Option<Box<str>> {
    let token = bearer(headers).filter(|_| tokens.admit(headers, Some(server)))?;
    let digits = digest(token).map(|byte| format!("{byte:02x}"));
    Some(digits.concat().into())
}

/// Formats random bytes as a token.
pub fn token_text(random: [u8; DIGITS / 2]) -> String {
    let digits = random.iter().map(|byte| format!("{byte:02x}"));
    [PREFIX.to_owned()].into_iter().chain(digits).collect()
}

/// The hash that is stored. A token has 256 random bits, so it cannot be found by guessing.
pub fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn is_token(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|digits| digits.len() == DIGITS)
}

/// The token of `Authorization: Bearer TOKEN`, if there is exactly one such header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).into_iter();
    let only = all.next().filter(|_| all.next().is_none())?;
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn callers(admit_root: bool, allow_other_users: bool) -> Callers {
        Callers { uid: 1000, admit_root, allow_other_users, tokens: Arc::default() }
    }

    #[test]
    fn the_user_and_root_are_trusted() {
        let other = |uid| Caller::NeedsToken(TokenReason::OtherUser(uid));
        let unknown = Caller::NeedsToken(TokenReason::Unknown);
        for (callers, owner, expected) in [
            (callers(true, false), Some(1000), Caller::Trusted),
            (callers(true, false), Some(0), Caller::Trusted),
            (callers(false, false), Some(0), other(0)),
            (callers(true, false), Some(1001), other(1001)),
            (callers(true, false), Some(65_534), unknown),
            (Callers { uid: 65_534, ..callers(true, false) }, Some(65_534), unknown),
            (callers(true, false), None, unknown),
            (callers(false, true), Some(1001), Caller::Trusted),
            (callers(false, true), None, Caller::Trusted),
        ] {
            assert_eq!(callers.classify(owner), expected, "{callers:?} {owner:?}");
        }
    }

    #[test]
    fn callers_at_a_public_address_need_a_token() {
        for address in ["0.0.0.0:1", "192.168.1.2:1", "[::]:1", "[::ffff:10.0.0.1]:1"] {
            let mut lookup = CallerLookup::new(callers(true, true), address.parse().ok());
            let (local, peer) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
            let expected = Caller::NeedsToken(TokenReason::PublicAddress);
            assert_eq!(lookup.caller(local, peer), expected, "{address}");
        }
    }

    #[test]
    fn a_token_admits_to_what_it_is_for() {
        let (all, one, none) = (token_text([1; 32]), token_text([2; 32]), token_text([3; 32]));
        let token = |text: &str, server: Option<&str>| Token {
            digest: digest(text),
            server: server.map(str::to_owned),
        };
        let tokens = Tokens::default();
        let admits = |authorization: &[&str], server: Option<&str>| {
            let mut headers = HeaderMap::new();
            for value in authorization {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            tokens.admit(&headers, server)
        };
        let bearer = |token: &str| format!("Bearer {token}");
        assert!(!admits(&[&bearer(&all)], Some("a")), "there are no tokens yet");
        tokens.replace(vec![token(&all, None), token(&one, Some("a"))]);
        assert!(admits(&[&bearer(&all)], Some("a")));
        assert!(admits(&[&bearer(&all)], None));
        assert!(admits(&[&format!("bearer   {all} ")], Some("b")));
        assert!(admits(&[&bearer(&one)], Some("a")));
        assert!(!admits(&[&bearer(&one)], Some("b")));
        assert!(!admits(&[&bearer(&one)], None));
        for wrong in [
            bearer(&none),
            bearer(""),
            bearer(&all[..all.len() - 1]),
            bearer(&format!("{all}0")),
            bearer(&all.to_uppercase()),
            format!("Basic {all}"),
            all.clone(),
            bearer(&"x".repeat(60_000)),
        ] {
            assert!(!admits(&[&wrong], Some("a")), "{wrong:.80}");
        }
        assert!(!admits(&[], Some("a")));
        assert!(!admits(&[&bearer(&all), &bearer(&all)], Some("a")), "two headers");
        tokens.replace(Vec::new());
        assert!(!admits(&[&bearer(&all)], Some("a")), "it was removed");
    }
}
