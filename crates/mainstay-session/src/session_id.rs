//! Ids of sessions, which are recognised without a record.
//!
//! An id is hexadecimal: 16 random bytes, the 4 bytes of its era, and the first 16 bytes of an HMAC-SHA256 over both
//! and the name of the server. An era lasts as long as the records of sessions are complete. Within an era a session
//! without a record has ended. If the records were lost, the next era begins, and a missing record of an earlier one
//! says nothing about its session.

use std::fmt;
use std::fmt::Write as _;

use ring::hmac;
use subtle::ConstantTimeEq as _;

const RANDOM: usize = 16;
const ERA: usize = 4;
const MAC: usize = 16;
const LENGTH: usize = 2 * (RANDOM + ERA + MAC);

/// The length of ids that earlier versions issued. They have no MAC and are known by their records only.
const EARLIER_LENGTH: usize = 32;

/// Issues ids of sessions and recognises them.
#[derive(Clone)]
pub struct SessionIds {
    key: hmac::Key,
    /// Another key whose ids are recognised.
    other: Option<hmac::Key>,
    era: [u8; ERA],
}

impl SessionIds {
    /// Issues ids of this era.
    pub fn new(key: &[u8; 32], era: u32) -> Self {
        Self { key: hmac_key(key), other: None, era: era.to_be_bytes() }
    }

    /// Also recognises ids that were issued with another key.
    #[must_use]
    pub fn recognising(self, other: Option<&[u8; 32]>) -> Self {
        Self { other: other.map(hmac_key), ..self }
    }

    pub(crate) fn issue(&self, server: &str) -> String {
        let mut bytes = [0; RANDOM + ERA];
        getrandom::fill(&mut bytes[..RANDOM]).expect("the system has random numbers");
        bytes[RANDOM..].copy_from_slice(&self.era);
        let mac = mac(&self.key, server, &bytes);
        bytes.iter().chain(&mac).fold(String::with_capacity(LENGTH), |mut id, byte| {
            write!(id, "{byte:02x}").expect("writing to a String cannot fail");
            id
        })
    }

    /// Whether the id was issued for this server in an earlier era, so that its record may be among those that were
    /// lost.
    pub(crate) fn is_of_earlier_era(&self, server: &str, id: &str) -> bool {
        let Some(bytes) = decode(id) else { return false };
        let (issued, mac) = bytes.split_at(RANDOM + ERA);
        let is_by = |key: &hmac::Key| bool::from(self::mac(key, server, issued)[..].ct_eq(mac));
        issued[RANDOM..] != self.era && (is_by(&self.key) || self.other.as_ref().is_some_and(is_by))
    }
}

fn hmac_key(key: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key)
}

fn mac(key: &hmac::Key, server: &str, issued: &[u8]) -> [u8; MAC] {
    let mut context = hmac::Context::with_key(key);
    context.update(b"session of ");
    context.update(server.as_bytes());
    // No name has it.
    context.update(b"\0");
    context.update(issued);
    let tag = context.sign();
    *tag.as_ref().first_chunk().expect("a SHA-256 is longer")
}

impl fmt::Debug for SessionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionIds").field("era", &self.era).finish_non_exhaustive()
    }
}

/// Whether a text can be an id at all.
pub fn is_id(text: &str) -> bool {
    matches!(text.len(), LENGTH | EARLIER_LENGTH)
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn decode(id: &str) -> Option<[u8; LENGTH / 2]> {
    if id.len() != LENGTH || !is_id(id) {
        return None;
    }
    let mut bytes = [0; LENGTH / 2];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&id[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_recognised_in_a_later_era_by_its_own_server_only() {
        let (first, later) = (SessionIds::new(&[7; 32], 1), SessionIds::new(&[7; 32], 2));
        let id = first.issue("time");
        assert!(is_id(&id) && id.len() == 72, "{id}");
        assert_ne!(first.issue("time")[..32], id[..32]);
        assert!(later.is_of_earlier_era("time", &id));
        assert!(!first.is_of_earlier_era("time", &id), "the records of this era are complete");
        assert!(!later.is_of_earlier_era("tim", &id));
        let others = SessionIds::new(&[8; 32], 2);
        assert!(!others.is_of_earlier_era("time", &id));
        assert!(others.clone().recognising(Some(&[7; 32])).is_of_earlier_era("time", &id));
        assert!(!others.recognising(Some(&[9; 32])).is_of_earlier_era("time", &id));
    }

    #[test]
    fn no_changed_id_is_recognised() {
        let later = SessionIds::new(&[7; 32], 2);
        let id = SessionIds::new(&[7; 32], 1).issue("time");
        for index in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[index] = if forged[index] == b'0' { b'1' } else { b'0' };
            let forged = String::from_utf8(forged).unwrap();
            assert!(!later.is_of_earlier_era("time", &forged), "{forged}");
        }
        for other in ["", "x", &id[..70], &id[..32], &"é".repeat(36), &format!("{id}00")] {
            assert!(!later.is_of_earlier_era("time", other), "{other}");
        }
        assert!(is_id(&id[..32]) && !is_id(&id[..31]) && !is_id(&id.to_uppercase()));
    }
}
