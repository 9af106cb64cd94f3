//! Mainstay itself dies, is replaced or cannot start, in the middle of traffic.
//!
//! Every story has a Mainstay of its own ([`setup`]). Its client speaks HTTP by hand, or is an official
//! SDK ([`real`]). What a story must see while no daemon is there is made certain by stopping
//! processes, not by being quick.

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
