//! The only code that edits AI clients' config files.
//!
//! From the inside out:
//!
//! - [`edit`]: pure functions from text to text that change one entry and no other byte.
//! - [`table`]: the clients as data: where their files are, what an entry looks like, how they lock.
//! - [`mod@file`]: brings an edited text to disk without ever leaving a damaged file behind.
//! - [`ledger`]: what we wrote where. An entry that is not in it belongs to someone else.
//! - `quarantine`: which files crashed the code that reads them, and are not read again.
//! - [`registrar`]: adding and removing an entry, on top of all that.
//!
//! Everything here blocks; an async caller runs it on a thread for blocking work.

mod clock;
pub mod edit;
pub mod file;
pub mod ledger;
mod quarantine;
pub mod registrar;
pub mod table;

pub use ledger::Purpose;
pub use quarantine::QuarantineReason;
pub use registrar::{Change, ClientError, Registrar, Status};
pub use table::{Client, Machine, Target, clients, variables};
