//! Clients' files through the life of servers: who is registered where, when entries go and come back,
//! and that not one byte of anybody else's is touched.
//!
//! Most stories have two texts of the same file: the one before Mainstay came, and the one with its
//! entry and what the user wrote into that. The file is always one or the other, byte for byte.

mod choosing;
mod desktop;
mod hands;
mod refresh;
pub(crate) mod scene;
mod trouble;
