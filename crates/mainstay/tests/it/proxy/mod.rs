//! Real clients in sessions that outlive the server behind them.
//!
//! Every story has a Mainstay of its own ([`setup`]), the official SDKs as clients ([`client`]) and,
//! where they show too little, HTTP written by hand ([`raw`]). Faults are signals to the server; a
//! story waits for what it needs, so none depends on how fast anything is.

mod admission;
pub(crate) mod client;
mod cold_start;
mod continuity;
mod front_ends;
mod invalid_output;
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
