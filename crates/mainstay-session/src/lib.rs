//! A server as its clients see it: always there. Pure: no IO, no clock, no tasks.
//!
//! A [`Server`] is the state machine of one server: its sessions, their requests and streams, the connections to its
//! runs, and the last good copies of its lists. The code around it reports what happened by calling its methods, with
//! the time; executes the [`Action`]s that these left behind ([`Server::next_action`]); and calls
//! [`Server::handle_timers`] when [`Server::deadline`] has passed. It guarantees that
//!
//! - a session continues whatever happens to runs: a new run learns what its sessions had agreed with the last one,
//!   before anything else;
//! - every request gets exactly one answer, by the replay contract (`replay`);
//! - no session sees what belongs to another.
//!
//! It also continues where an earlier daemon stopped: [`Server::restore`] and [`Server::recover`] take what that
//! daemon stored. A daemon that is replaced calls [`Server::freeze`] first.
//!
//! One port is called directly instead of through an action: the [`StateStore`], whose methods never wait. A request
//! must not be sent before its record is written.

mod action;
mod availability;
mod call_timeout;
mod calls;
mod exchange;
mod http;
mod initialize;
mod late_results;
mod level;
mod limits;
mod links;
mod list_copies;
mod list_requests;
mod listen;
mod messages;
mod notifications;
mod presence;
mod progress;
mod record;
mod recover;
mod replay;
mod request_place;
mod residency;
mod run_retention;
mod server;
mod server_requests;
mod session;
mod session_clock;
mod session_id;
mod session_runs;
mod silence;
mod stdio;
mod stream;
mod streams;
mod table;
#[cfg(test)]
mod tests;
mod timers;

pub use action::{
    Action, Decision, HttpFailure, HttpOperation, HttpOutcome, Relayed, Report, RunOwner,
};
pub use availability::{Availability, Reason, Run};
pub use call_timeout::CallTimeouts;
pub use calls::{Arrival, CallKey, NO_DISCOVER, NOT_INITIALIZED, classify_refusal};
pub use http::{OperationKey, UpstreamSession};
pub use initialize::client_version;
pub use late_results::Abandoned;
pub use level::Level;
pub use links::{LinkKey, LinkTarget, RunInfo, epoch};
pub use record::{
    Sent, SessionRecord, StateStore, StreamChange, StreamKey, StreamRecord, UpstreamRecord,
};
pub use recover::RelayNews;
pub use request_place::RequestPlace;
pub use server::{Config, Server, Settings};
pub use session::SessionKey;
pub use session_clock::SessionClock;
pub use session_id::{SessionIds, is_id};
pub use silence::{LinkObservation, SentRequest, UnreadRequests};
pub use stream::{EventId, Found, Item, NotOurs, Peek, Read, Start, StreamState};
pub use streams::{Commit, StreamRef};
pub use table::Key;
