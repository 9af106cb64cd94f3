//! The proxy between MCP clients and servers.
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
mod clock;
pub mod front;
mod hub;
mod intake_gate;
mod record;
mod session_id;
pub mod sock_diag;
pub mod stream;
mod write_fence;

pub use catch_panic::CatchPanic;
pub use clock::SessionClock;
pub use hub::{
    Availability, Decision, EventSink, Hub, Hubs, Isolation, LastLine, Local, Ports, Reason,
    RelayNews, RelayedCall, Relays, Run, RunInfo, Session, Settings, Stderr,
};
pub use intake_gate::IntakeGate;
pub use mainstay_mcp::loss::is_session_lost;
pub use mainstay_mcp::upstream::{Hello, Identity, LineLink, Link, NO_MESSAGE, UpstreamError};
pub use mainstay_mcp::{client, frame, lists, sse};
use mainstay_mcp::{loss, upstream};
pub use record::{
    RecordLookup, Sent, SessionRecord, StateStore, StreamKey, StreamNews, StreamRecord, Unreadable,
    UpstreamRecord, Written,
};
pub use session_id::SessionIds;
