//! The only code that speaks MCP.
//!
//! Clients come in through a [`front`] (streamable HTTP or lines), which knows transports and no
//! servers. Behind it a [`Hub`] for each server owns the sessions, and knows servers and no
//! transports. What passes between them are messages as they were written ([`frame`]): they are
//! scanned for their outer parts, and only the bytes that must change are changed.
//!
//! It speaks the protocol versions with a handshake, 2024-11-05 to 2025-11-25.

#![warn(missing_docs)]

pub mod bridge;
mod catch_panic;
pub mod client;
mod clock;
mod door;
pub mod frame;
pub mod front;
mod gate;
mod hub;
pub mod lists;
mod loss;
mod record;
mod session_id;
pub mod sock_diag;
pub mod sse;
pub mod stream;
mod upstream;

pub use catch_panic::CatchPanic;
pub use clock::SessionClock;
pub use door::Door;
pub use hub::{
    Arrival, Decision, Hub, Hubs, Isolation, LastLine, Local, Outlook, Ports, Reason, RelayNews,
    RelayedCall, Relays, Run, Session, Settings, Stderr, Witness,
};
pub use loss::is_session_lost;
pub use record::{
    Keeper, RecordLookup, Sent, SessionRecord, StreamKey, StreamNews, StreamRecord, Unreadable,
    UpstreamRecord, Written,
};
pub use session_id::SessionIds;
pub use upstream::{Hello, Identity, LineLink, Link, NO_MESSAGE, UpstreamError};
