//! What is defined where, as far as needed to see that nothing is defined twice.

use std::borrow::Cow;
use std::collections::HashMap;

/// A table that names are defined in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Scope(usize);

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
    List(Scope),
    /// As a part of a key with dots. More such keys may follow.
    Dotted,
    /// As a value.
    Value,
}

/// Everything that is defined in a text so far.
pub(super) struct Names<'t> {
    known: HashMap<(Scope, Cow<'t, str>), (Scope, Origin)>,
    scopes: usize,
}

impl<'t> Names<'t> {
    pub(super) fn with_room_for(count: usize) -> Self {
        Self { known: HashMap::with_capacity(count), scopes: 1 }
    }

    /// Defines a table, and answers with its scope unless it may be there already.
    pub(super) fn header(&mut self, path: &[Cow<'t, str>], is_list: bool) -> Option<Scope> {
        let (last, way) = path.split_last()?;
        let mut scope = Scope::ROOT;
        for key in way {
            scope = match self.entry(scope, key.clone(), Origin::Implied) {
                (_, Origin::List(last)) => last,
                (scope, Origin::Implied | Origin::Header) => scope,
                (_, Origin::Dotted | Origin::Value) => return None,
            };
        }
        let fresh = self.nameless();
        let key = (scope, last.clone());
        let (scope, origin) = match (self.known.get(&key), is_list) {
            (None, false) => (fresh, Origin::Header),
            (Some((implied, Origin::Implied)), false) => (*implied, Origin::Header),
            (None | Some((_, Origin::List(_))), true) => (fresh, Origin::List(fresh)),
            (Some(_), _) => return None,
        };
        self.known.insert(key, (scope, origin));
        Some(scope)
    }

    /// Defines a value, and answers whether it cannot be there already.
    pub(super) fn key(&mut self, scope: Scope, path: &[Cow<'t, str>]) -> bool {
        let Some((last, way)) = path.split_last() else { return false };
        let mut scope = scope;
        for key in way {
            scope = match self.entry(scope, key.clone(), Origin::Dotted) {
                (scope, Origin::Dotted) => scope,
                (_, Origin::Implied | Origin::Header | Origin::List(_) | Origin::Value) => {
                    return false;
                }
            };
        }
        self.known.insert((scope, last.clone()), (scope, Origin::Value)).is_none()
    }

    /// A table without a name: one in braces.
    pub(super) fn nameless(&mut self) -> Scope {
        self.scopes += 1;
        Scope(self.scopes - 1)
    }

    /// What a name stands for; if nothing yet, for something that came to be in this way.
    fn entry(&mut self, scope: Scope, key: Cow<'t, str>, origin: Origin) -> (Scope, Origin) {
        let fresh = self.nameless();
        *self.known.entry((scope, key)).or_insert((fresh, origin))
    }
}
