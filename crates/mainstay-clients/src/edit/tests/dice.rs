//! Choices for generated documents. They come from a list that proptest makes, so that a failure shrinks to a
//! document with few and simple parts: a list that is used up continues with zeros.

use proptest::prelude::{Strategy, any};

#[derive(Debug, Clone)]
pub(super) struct Dice {
    choices: std::vec::IntoIter<u8>,
}

impl Dice {
    pub(super) fn strategy() -> impl Strategy<Value = Dice> {
        proptest::collection::vec(any::<u8>(), 0..160)
            .prop_map(|choices| Dice { choices: choices.into_iter() })
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.choices.next().unwrap_or(0)) % limit
    }

    pub(super) fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == limit - 1
    }

    pub(super) fn of<'a>(&mut self, options: &[&'a str]) -> &'a str {
        options[self.below(options.len())]
    }

    /// A line end, in the manner of the file: 0 and 1 keep to one kind, the others mix.
    pub(super) fn newline(&mut self, manner: usize) -> &'static str {
        match manner {
            0 => "\n",
            1 => "\r\n",
            _ => self.of(&["\n", "\r\n"]),
        }
    }
}
