//! Mainstay itself dies, is replaced or cannot start, in the middle of traffic.
//!
//! Every test has its own Mainstay ([`setup`]). Its client sends raw HTTP, or is an official SDK ([`real`]). Tests stop
//! processes to make sure that something happens without a daemon; none depends on timing.

mod absent;
mod calls;
mod connections;
mod failing;
mod holder;
mod listening;
mod lost_sessions;
mod lost_store;
mod partial_requests;
mod real;
mod sdk_versions;
mod servers;
pub(crate) mod setup;
mod wiped;
