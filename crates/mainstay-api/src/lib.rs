//! The contract between the command line and the daemon.
//!
//! One connection carries one request. The daemon speaks first: a [`Hello`] line with its version and that of the
//! protocol. The client then writes one [`Request`] line, and reads [`Frame`] lines: any number of items for a request
//! that streams, then exactly one `ok` or `error`. After the `ok` to [`Request::Connect`] the connection carries the
//! messages of an MCP client, and a daemon that is replaced sends a [`Farewell`]. Every line is one JSON value.
//! `schema/v1.json` documents the fields of the answers; a test compares it with these types.
//!
//! Compatibility: readers ignore unknown fields, and a field never changes its meaning. A change that an old reader would
//! misread raises [`PROTOCOL`].

#![warn(missing_docs)]

mod client;
mod error;
mod instance;
mod listen;
mod location;
mod model;
mod protocol;
mod registration;
mod silence;
mod stop_mark;

pub use client::{
    CallError, Connection, Dial, Grace, connect_if_present, connect_with_restart_grace,
    is_transient,
};
pub use error::{ApiError, ErrorKind};
pub use instance::{Instance, InstanceError};
pub use listen::{Listen, ListenError};
pub use location::{Location, Machine};
pub use model::{
    AddressInfo, Connected, ContainerInfo, DaemonInfo, Described, EventRecord, LastExit, LogLine,
    McpInfo, NewToken, Outcome, PullProgress, ServerInfo, StatusReport, TargetOwner, TokenInfo,
    WhyReport,
};
pub use protocol::{
    Around, Farewell, Frame, Hello, MAX_LINE, MAX_MESSAGE, PROTOCOL, Request, Which,
};
pub use registration::{
    ClientDone, ClientEntry, ClientInfo, ClientReport, EntryStanding, Registration,
};
pub use silence::{SilenceInfo, StartInfo, WaitReport};

/// The JSON schema of everything that `--json` prints, as it is checked in.
pub fn schema() -> serde_json::Value {
    let mut all = schemars::SchemaGenerator::default();
    let _ls = all.subschema_for::<Vec<ServerInfo>>();
    let _status = all.subschema_for::<StatusReport>();
    let _why = all.subschema_for::<WhyReport>();
    let _event = all.subschema_for::<EventRecord>();
    let _log = all.subschema_for::<LogLine>();
    let _outcome = all.subschema_for::<Outcome>();
    let _described = all.subschema_for::<Described>();
    let _client = all.subschema_for::<ClientInfo>();
    let _report = all.subschema_for::<ClientReport>();
    let _token = all.subschema_for::<TokenInfo>();
    let _new_token = all.subschema_for::<NewToken>();
    let _daemon = all.subschema_for::<DaemonInfo>();
    let _error = all.subschema_for::<ApiError>();
    serde_json::json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Mainstay, machine-readable output, version 1",
        "$defs": all.take_definitions(true),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_schema_is_the_one_of_these_types() {
        let checked_in: serde_json::Value =
            serde_json::from_str(include_str!("../schema/v1.json")).unwrap();
        assert_eq!(
            super::schema(),
            checked_in,
            "run `cargo run -p mainstay-api --example schema > crates/mainstay-api/schema/v1.json`"
        );
    }
}
