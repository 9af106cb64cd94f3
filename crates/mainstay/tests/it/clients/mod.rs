//! Clients' files through the life of servers: who is registered where, when entries go and come back,
//! and that not one byte of anybody else's is touched.
//!
//! Most stories have two texts of the same file: the one before Mainstay came, and the one with its
//! entry and what the user wrote into that. The file is always one or the other, byte for byte.

mod desktop;
mod manual_edits;
mod refresh;
mod selection;
pub(crate) mod setup;
mod unusable_files;
