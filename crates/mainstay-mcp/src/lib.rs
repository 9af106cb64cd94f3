//! The only code that knows MCP on the wire: frames, SSE, protocol versions, the HTTP client to upstreams.
//!
//! It speaks the protocol versions with a handshake, 2024-11-05 to 2025-11-25.

pub mod client;
pub mod frame;
pub mod lists;
pub mod loss;
pub mod sse;
pub mod upstream;
pub mod version;
