//! What should run, and what to do next.
//!
//! This crate decides and never acts: it reads no clock, opens no file and spawns nothing. Facts and
//! the current time come in, actions go out, so every hard case is an ordinary unit test.

mod backoff;
mod cause;
mod inherit;
mod interruption;
mod name;
mod news;
pub mod panics;
mod policy;
pub mod refresh;
pub mod session_runs;
mod spec;
pub mod start_activity;
mod status;
pub mod supervisor;
mod text;
mod unit;
pub mod watchdog;

pub use backoff::{Jitter, backoff};
pub use cause::{Cause, Exit};
pub use inherit::is_inherited;
pub use interruption::Interruption;
pub use name::{NameError, RunId, ServerName};
pub use news::{FoundState, News, RunKey, Started};
pub use panics::lock;
pub use policy::{LONGEST_STOP_TIMEOUT, OnStop, RestartPolicy, StableFrom};
pub use session_runs::{SessionRunKey, SessionRuns};
pub use spec::{
    ClientSettings, ContainerSpec, EngineKind, EnvVar, HeaderError, HeaderName, HeaderValue,
    ImageError, ImageRef, Limits, NoSuchMode, ProcessSpec, ProxyProblem, ProxySettings,
    RefreshMode, RemoteSpec, RemoteUrl, ServerSpec, SpecError, TimeLimit, Transport, UrlError,
    Volume, VolumeError, Wanted, Workload, WorkloadKind,
};
pub use status::Status;
pub use supervisor::Supervisor;
pub use text::{human_bytes, human_duration, with_causes};
pub use unit::{Action, Ended, Event, Found, LoggedEvent, RestartState, Unit, UnitHistory, View};
