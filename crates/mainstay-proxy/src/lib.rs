//! The only code that speaks MCP.
//!
//! Today it holds the upstream half: an [`Upstream`] is one initialized session with one run of a
//! server, over the lines of a stdio server or over streamable HTTP. It guarantees that
//!
//! - every request gets exactly one answer: the server's, or an error as soon as it is known that
//!   the server's will not come (how long to wait for a silent server is up to the caller);
//! - a request that its caller gives up is cancelled at the server, and its late answer goes nowhere;
//! - payloads pass through byte for byte: frames are scanned for their outer parts ([`frame`]),
//!   never parsed and written again;
//! - what a server prints besides MCP harms no session.
//!
//! It speaks the protocol versions with a handshake, 2024-11-05 to 2025-11-25, and announces no
//! client capability, so that a server has nothing to ask of it but `ping`.

#![warn(missing_docs)]

pub mod client;
pub mod frame;
pub mod lists;
pub mod sse;
pub mod stream;
mod upstream;

pub use upstream::{Fault, Hello, HttpLink, Identity, LineLink, Link, Upstream, UpstreamError};
