//! Real clients in sessions that outlive the server behind them.
//!
//! Every story has a Mainstay of its own ([`scene`]), the official SDKs as clients ([`client`]) and,
//! where they show too little, HTTP written by hand ([`raw`]). Faults are signals to the server; a
//! story waits for what it needs, so none depends on how fast anything is.

mod client;
mod continuity;
mod direct;
mod raw;
mod replay;
mod rust_sdk;
mod scene;
