//! State on disk: intent, sessions, events, and requests in flight.

pub(crate) mod event_log;
pub(crate) mod files;
pub(crate) mod schemas;
pub(crate) mod session_key;
pub(crate) mod session_store;
pub(crate) mod store;
pub(crate) mod stream_journal;
