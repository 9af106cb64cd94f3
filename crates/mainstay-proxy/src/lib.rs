//! Clients on one side, servers on the other, and sessions that outlive both.
//!
//! Clients come in through a [`front`] (streamable HTTP), which knows transports and no servers. Behind it a
//! [`ServerHandle`] for each server executes what the pure state machine in `mainstay-session` decides. Messages pass
//! between them as they were written ([`frame`]): they are scanned for their outer parts, and only the bytes that must
//! change are changed.
//!
//! It speaks the protocol versions with a handshake, 2024-11-05 to 2025-11-25.

pub mod bridge;
mod catch_panic;
pub mod front;
mod intake_gate;
mod private_headers;
mod server;
mod store;

pub use catch_panic::CatchPanic;
pub use intake_gate::IntakeGate;
pub use mainstay_mcp::loss::is_session_lost;
pub use mainstay_mcp::upstream::{
    Hello, Identity, LineLink, NO_MESSAGE, UpstreamError, UpstreamTransport,
};
pub use mainstay_mcp::{client, frame, lists, sse};
pub use mainstay_session::{
    Abandoned, Arrival, Availability, CallTimeouts, Decision, EventId, Found, Item, Reason,
    RelayNews, Report, RequestPlace, Run, RunInfo, RunOwner, Sent, SessionClock, SessionIds,
    SessionRecord, Settings, Start, StateStore, StreamChange, StreamKey, StreamRecord,
    UpstreamRecord, epoch,
};
pub use server::{
    AttachedRun, LastLine, Local, LocalWatch, Lookup, OpenError, Ports, Reader, Ready, RelayedCall,
    Relays, ServerHandle, Servers, Session,
};
pub use store::{RecordLookup, SessionStore, Unreadable, Written};
