//! The built programs, from outside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well panic")]

mod blocking;
mod fixture;
mod http;
mod load;
mod misbehaviour;
mod proxy;
mod stdio;
mod streams;
mod talk;
