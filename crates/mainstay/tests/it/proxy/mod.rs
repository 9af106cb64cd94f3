//! Real clients in sessions that survive their server.
//!
//! Every test has its own Mainstay ([`setup`]), the official SDKs as clients ([`client`]) and, where they show too
//! little, raw HTTP ([`raw`]). Faults are signals to the server. Tests wait for events, so none depends on timing.

mod admission;
pub(crate) mod client;
mod cold_start;
mod continuity;
mod front_ends;
mod invalid_output;
mod late_results;
mod lists;
pub(crate) mod raw;
mod real;
pub(crate) mod remote;
mod replay;
mod rust_sdk;
mod server_requests;
mod setup;
mod sharing;
mod without_mainstay;
