//! The rules as stories and as properties.

mod corrections;
mod engine;
mod exits;
mod history;
mod logged_events;
mod outages;
mod properties;
mod requests;
mod runs;
mod schedule;
mod world;
