//! What is defined where, as far as needed to see that nothing is defined twice.
//!
//! Names are known by a hash. Two with the same hash are taken for one, which raises a doubt that the full parser
//! settles; it hides nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table that names are defined in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope(u32);

impl Scope {
    /// The document.
    pub(super) const ROOT: Self = Self(0);
}

/// How something came to be defined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// As a part of the path of a header. A header of its own may follow.
    Implied,
    /// By a header.
    Header,
    /// By headers in double brackets. The scope is that of the last one.
    List,
    /// As a part of a key with dots. More such keys may follow.
    Dotted,
    /// As a value.
    Value,
}

/// Everything that is defined in a text so far.
pub(super) struct Names {
    known: HashMap<u64, (Scope, Origin), BuildHasherDefault<AsItIs>>,
    scopes: u32,
}

impl Names {
    pub(super) fn with_room_for(count: usize) -> Self {
        Self {
            known: HashMap::with_capacity_and_hasher(count, BuildHasherDefault::new()),
            scopes: 1,
        }
    }

    /// Defines a table, and answers with its scope unless it may be there already.
    pub(super) fn header(&mut self, path: &[Cow<str>], is_list: bool) -> Option<Scope> {
        let (last, way) = path.split_last()?;
        let mut scope = Scope::ROOT;
        for key in way {
            scope = match self.entry(scope, key, Origin::Implied) {
                (scope, Origin::Implied | Origin::Header | Origin::List) => scope,
                (_, Origin::Dotted | Origin::Value) => return None,
            };
        }
        let fresh = self.nameless();
        let key = hash(scope, last);
        let defined = match (self.known.get(&key), is_list) {
            (None, false) => (fresh, Origin::Header),
            (Some((implied, Origin::Implied)), false) => (*implied, Origin::Header),
            (None | Some((_, Origin::List)), true) => (fresh, Origin::List),
            (Some(_), _) => return None,
        };
        self.known.insert(key, defined);
        Some(defined.0)
    }

    /// Defines a value, and answers whether it cannot be there already.
    pub(super) fn key(&mut self, scope: Scope, path: &[Cow<str>]) -> bool {
        let Some((last, way)) = path.split_last() else { return false };
        let mut scope = scope;
        for key in way {
            scope = match self.entry(scope, key, Origin::Dotted) {
                (scope, Origin::Dotted) => scope,
                (_, Origin::Implied | Origin::Header | Origin::List | Origin::Value) => {
                    return false;
                }
            };
        }
        self.known.insert(hash(scope, last), (scope, Origin::Value)).is_none()
    }

    /// A table without a name: one in braces.
    pub(super) fn nameless(&mut self) -> Scope {
        let fresh = Scope(self.scopes);
        self.scopes += 1;
        fresh
    }

    /// What a name stands for; if nothing yet, for something that came to be in this way.
    fn entry(&mut self, scope: Scope, key: &str, origin: Origin) -> (Scope, Origin) {
        let fresh = self.nameless();
        *self.known.entry(hash(scope, key)).or_insert((fresh, origin))
    }
}

fn hash(scope: Scope, key: &str) -> u64 {
    let mix = |hash: u64, part: u64| {
        let product = (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
        // A product carries differences upward only: those of the last byte of one part would meet those of the next.
        product ^ product >> 32
    };
    let start = mix(key.len() as u64, u64::from(scope.0));
    key.as_bytes().chunks(8).fold(start, |hash, chunk| {
        let mut part = [0; 8];
        part[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(part))
    })
}

/// Takes a hash for what it is.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_differ_in_digits_are_told_apart() {
        let names = ["", "p", "/home/ann/code/project-", "C:\\work\\p", "service.eu-west-1.host-"];
        let mut seen = HashSet::new();
        for scope in [0, 1, 4711] {
            for name in names {
                for number in 0..10_000 {
                    let key = format!("{name}{number}");
                    assert!(seen.insert(hash(Scope(scope), &key)), "{scope} {key}");
                }
            }
        }
    }
}
