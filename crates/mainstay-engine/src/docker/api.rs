//! The Docker API of one engine, reduced to what Mainstay needs.
//!
//! Every request uses a new connection, so each one also shows whether the engine still accepts connections.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bollard::Docker;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerStateStatusEnum,
    ContainerSummaryStateEnum, EventMessage, HealthStatusEnum,
};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder,
    InspectContainerOptions, InspectNetworkOptions, KillContainerOptionsBuilder,
    ListContainersOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions, StopContainerOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use mainstay_core::{EngineKind, ImageRef};
use tokio::time::timeout;

use super::body;
use super::pump::Stdout;
use super::watch::ContainerState;
use crate::discover::Address;
use crate::lines::{Line, LineQueue, LineSplitter};

/// An engine that takes longer to answer a ping is away.
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of read-only requests.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of changes, without the grace period of a stop.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// 404.
    #[error("{0}")]
    Missing(String),
    /// 409.
    #[error("{0}")]
    Conflict(String),
    /// Another client error.
    #[error("{0}")]
    Refused(String),
    /// 5xx. The request may have been executed.
    #[error("{0}")]
    Internal(String),
    /// There was no answer, or it could not be parsed.
    #[error("{0}")]
    NoAnswer(NoAnswer),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// This user must not connect to the engine's socket.
    #[error("permission denied")]
    PermissionDenied,
    #[error("{0}")]
    Other(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code, message } => match status_code {
                404 => Self::Missing(in_one_line(&message)),
                409 => Self::Conflict(in_one_line(&message)),
                500.. => Self::Internal(in_one_line(&message)),
                _ => Self::Refused(in_one_line(&message)),
            },
            Error::DockerStreamError { error } => Self::Refused(in_one_line(&error)),
            Error::RequestTimeoutError => {
                Self::NoAnswer(NoAnswer::Other("no answer in time".to_owned()))
            }
            Error::SocketNotFoundError(_) => {
                Self::NoAnswer(NoAnswer::Other("its socket does not exist".to_owned()))
            }
            other => Self::NoAnswer(NoAnswer::from_causes(&other)),
        }
    }
}

/// Engines pass on the output of their runtimes, with line ends.
fn in_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl NoAnswer {
    /// By the system error behind an error, if there is one.
    fn from_causes(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let system = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).last();
        match system.map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied) => Self::PermissionDenied,
            Some(kind) => Self::Other(kind.to_string()),
            None => Self::Other(error.to_string()),
        }
    }
}

/// Identifies an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) kind: EngineKind,
}

/// The result of an inspection.
#[derive(Debug, Clone)]
pub(crate) struct Inspected {
    pub(crate) state: ContainerState,
    /// The published ports of this machine, by the port inside the container.
    pub(crate) ports: HashMap<u16, u16>,
    /// Its first process, as the engine sees it.
    pub(crate) pid: Option<u32>,
    /// Whether that is an init of the engine.
    pub(crate) has_init: bool,
}

/// A container with the labels of this instance, as a list has it. Anyone can set labels: whether this
/// instance created it is decided by [`ownership`](super::ownership).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) name: String,
    /// From the labels.
    pub(crate) server: String,
    pub(crate) nonce: Option<String>,
    /// When it was created, in seconds of Unix time.
    pub(crate) created: i64,
    /// Whether it was ever started.
    pub(crate) started: bool,
}

/// The API of one engine.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    docker: Docker,
}

impl Api {
    /// Connects to the engine at an address.
    pub(crate) async fn connect(address: &Address) -> Result<(Self, Identity), Failure> {
        let docker = connect(address)?.with_timeout(CHANGE_TIMEOUT);
        with_timeout(PING_TIMEOUT, docker.ping()).await?;
        let docker = with_timeout(QUERY_TIMEOUT, docker.negotiate_version()).await?;
        let api = Self { docker };
        let identity = api.identity().await?;
        Ok((api, identity))
    }

    pub(crate) async fn identity(&self) -> Result<Identity, Failure> {
        let version = with_timeout(QUERY_TIMEOUT, self.docker.version()).await?;
        let info = with_timeout(QUERY_TIMEOUT, self.docker.info()).await?;
        let mut components = version.components.iter().flatten();
        if components.any(|component| component.name.contains("Podman")) {
            // Podman invents a new id for every answer. The directory of its files identifies it.
            let id = [info.name, info.docker_root_dir].map(Option::unwrap_or_default).join(":");
            return Ok(Identity { id, kind: EngineKind::Podman });
        }
        Ok(Identity { id: info.id.unwrap_or_default(), kind: EngineKind::Docker })
    }

    /// Whether the engine accepts a new connection and answers.
    pub(crate) async fn ping(&self) -> Result<(), Failure> {
        with_timeout(PING_TIMEOUT, self.docker.ping()).await.map(drop).map_err(Failure::from)
    }

    /// Events about containers of this instance, from now on.
    pub(crate) fn events(
        &self,
        instance: &str,
    ) -> impl Stream<Item = Result<EventMessage, Error>> + use<> {
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("label", vec![format!("{}={instance}", body::INSTANCE)]),
        ]);
        self.docker.events(Some(EventsOptionsBuilder::default().filters(&filters).build()))
    }

    /// All containers with the label of this instance, whether they run or not.
    pub(crate) async fn list(&self, instance: &str) -> Result<Vec<Listed>, Failure> {
        let filters = HashMap::from([("label", vec![format!("{}={instance}", body::INSTANCE)])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let found = with_timeout(QUERY_TIMEOUT, self.docker.list_containers(Some(options))).await?;
        let listed = found.into_iter().filter_map(|found| {
            let mut labels = found.labels?;
            // An engine that does not know the filter lists all containers.
            labels.remove(body::INSTANCE).filter(|found| found == instance)?;
            let server = labels.remove(body::SERVER)?;
            let name = found.names?.into_iter().next()?;
            let name = name.trim_start_matches('/').to_owned();
            let (nonce, created) = (labels.remove(body::NONCE), found.created.unwrap_or_default());
            // Podman lists its state `configured` as `created`, too.
            let started = found.state != Some(ContainerSummaryStateEnum::CREATED);
            Some(Listed { id: found.id?, name, server, nonce, created, started })
        });
        Ok(listed.collect())
    }

    /// Inspects the container with this id.
    pub(crate) async fn inspect(&self, id: &str) -> Result<Inspected, Failure> {
        let found = self.find(id).await?;
        if found.id.as_deref() != Some(id) {
            // Engines also find a container by its name, and someone may have named one like that.
            return Err(Failure::Missing(format!("there is no container with the id {id}")));
        }
        Ok(inspected(id, found))
    }

    /// The id of the container that has a name.
    pub(crate) async fn id_of(&self, name: &str) -> Result<Option<String>, Failure> {
        match self.find(name).await {
            Ok(found) => Ok(found.id),
            Err(Failure::Missing(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn find(&self, id_or_name: &str) -> Result<ContainerInspectResponse, Failure> {
        let asked = self.docker.inspect_container(id_or_name, None::<InspectContainerOptions>);
        Ok(with_timeout(QUERY_TIMEOUT, asked).await?)
    }

    pub(crate) async fn has_image(&self, image: &ImageRef) -> Result<(), Failure> {
        Ok(with_timeout(QUERY_TIMEOUT, self.docker.inspect_image(image.as_str()))
            .await
            .map(drop)?)
    }

    pub(crate) async fn has_network(&self, name: &str) -> Result<(), Failure> {
        let asked = self.docker.inspect_network(name, None::<InspectNetworkOptions>);
        Ok(with_timeout(QUERY_TIMEOUT, asked).await.map(drop)?)
    }

    /// Creates a container under the first of these names that is free.
    pub(crate) async fn create(
        &self,
        [first, second]: &[String; 2],
        body: &ContainerCreateBody,
    ) -> Result<String, Failure> {
        match self.create_as(first, body).await {
            Err(Failure::Conflict(_)) => self.create_as(second, body).await,
            other => other,
        }
    }

    async fn create_as(&self, name: &str, body: &ContainerCreateBody) -> Result<String, Failure> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        Ok(self.docker.create_container(Some(options), body.clone()).await?.id)
    }

    /// Starts a container, unless it is running.
    pub(crate) async fn start(&self, id: &str) -> Result<(), Failure> {
        Ok(self.docker.start_container(id, None::<StartContainerOptions>).await?)
    }

    /// Stops a container, and kills it after the grace period. Returns when it has ended.
    pub(crate) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Failure> {
        let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(seconds).build();
        let patient = self.docker.clone().with_timeout(CHANGE_TIMEOUT.saturating_add(grace));
        Ok(patient.stop_container(id, Some(options)).await?)
    }

    /// Kills a container, if it is running.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), Failure> {
        let options = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
        match self.docker.kill_container(id, Some(options)).await.map_err(Failure::from) {
            Err(Failure::Conflict(_)) => Ok(()),
            other => other,
        }
    }

    pub(crate) async fn unpause(&self, id: &str) -> Result<(), Failure> {
        Ok(self.docker.unpause_container(id).await?)
    }

    /// Removes the container with this id and what only it uses. Returns whether it is gone: `false` while
    /// another removal is in progress.
    pub(crate) async fn remove(&self, id: &str) -> Result<bool, Failure> {
        if let Err(Failure::Missing(_)) = self.inspect(id).await {
            return Ok(true);
        }
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.docker.remove_container(id, Some(options)).await.map_err(Failure::from) {
            Ok(()) | Err(Failure::Missing(_)) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Connects to the standard streams of a container, whether it runs or not.
    pub(crate) async fn attach(
        &self,
        id: &str,
        stdout: Stdout,
    ) -> Result<AttachContainerResults, Failure> {
        let options = AttachContainerOptionsBuilder::default()
            .stdin(stdout == Stdout::Protocol)
            .stdout(true)
            .stderr(true)
            .stream(true)
            .build();
        Ok(with_timeout(QUERY_TIMEOUT, self.docker.attach_container(id, Some(options))).await?)
    }

    /// The output of a container since that second of Unix time, as far as the engine still has it: of each stream
    /// the last lines, about this many bytes at most. Standard error only if it is asked for.
    pub(crate) async fn read_log(
        &self,
        id: &str,
        since: i32,
        bytes: usize,
        with_stderr: bool,
    ) -> Result<LoggedOutput, Failure> {
        let options = LogsOptionsBuilder::default().stdout(true).stderr(with_stderr);
        let mut log = self.docker.logs(id, Some(options.since(since).tail("all").build()));
        let (mut stdout, mut stderr) = (LastLines::new(bytes), LastLines::new(bytes));
        let read = async {
            while let Some(frame) = log.next().await {
                match frame? {
                    LogOutput::StdOut { message } => stdout.push(message),
                    LogOutput::StdErr { message } => stderr.push(message),
                    LogOutput::StdIn { .. } | LogOutput::Console { .. } => {}
                }
            }
            Ok(())
        };
        with_timeout(QUERY_TIMEOUT, read).await?;
        let unfinished = stdout.splitter.pending() > 0;
        let (stdout, stderr) = (stdout.lines.into(), stderr.lines.into());
        Ok(LoggedOutput { stdout, stderr, unfinished })
    }

    pub(crate) fn docker(&self) -> &Docker {
        &self.docker
    }
}

/// The output in an engine's log: the lines of each stream, oldest first.
#[derive(Debug, Default)]
pub(crate) struct LoggedOutput {
    pub(crate) stdout: Vec<Bytes>,
    pub(crate) stderr: Vec<Bytes>,
    /// Whether standard output ends in the middle of a line.
    pub(crate) unfinished: bool,
}

/// The last lines of a log.
#[derive(Debug)]
struct LastLines {
    splitter: LineSplitter,
    lines: LineQueue,
    limit: usize,
}

impl LastLines {
    fn new(limit: usize) -> Self {
        Self { splitter: LineSplitter::default(), lines: LineQueue::default(), limit }
    }

    fn push(&mut self, message: Bytes) {
        for line in self.splitter.push(message) {
            let (Line::Whole(line) | Line::TooLong { ends: line, .. }) = line;
            self.lines.push(line);
        }
        while self.lines.bytes() > self.limit && self.lines.pop().is_some() {}
    }
}

fn connect(address: &Address) -> Result<Docker, Failure> {
    let version = bollard::API_DEFAULT_VERSION;
    let seconds = CHANGE_TIMEOUT.as_secs();
    let docker = match address {
        Address::Unix(path) => {
            // `connect_with_socket` would report every problem with the socket as a missing file.
            Docker::connect_with_unix(&path.to_string_lossy(), seconds, version)
        }
        Address::Tcp { host_port, tls: None } => {
            Docker::connect_with_http(&format!("tcp://{host_port}"), seconds, version)
        }
        Address::Tcp { host_port, tls: Some(files) } => Docker::connect_with_ssl(
            &format!("tcp://{host_port}"),
            &files.key(),
            &files.cert(),
            &files.ca(),
            seconds,
            version,
        ),
    };
    Ok(docker?)
}

async fn with_timeout<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(limit, asked).await.unwrap_or(Err(Error::RequestTimeoutError))
}

fn inspected(id: &str, found: ContainerInspectResponse) -> Inspected {
    let found_state = found.state.unwrap_or_default();
    let pid = found_state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    let health = found_state.health.and_then(|health| health.status);
    // Podman reports a container that is stopping as not running, before its exit code is known.
    let stopping = found_state.status == Some(ContainerStateStatusEnum::STOPPING);
    let state = ContainerState {
        id: id.to_owned(),
        running: stopping || found_state.running.unwrap_or(false),
        paused: found_state.paused.unwrap_or(false),
        unhealthy: health == Some(HealthStatusEnum::UNHEALTHY),
        started_at: found_state.started_at.unwrap_or_default(),
        exit_code: found_state.exit_code.unwrap_or_default(),
        oom: found_state.oom_killed.unwrap_or(false),
        removing: found_state.status == Some(ContainerStateStatusEnum::REMOVING),
    };
    let published = found.network_settings.and_then(|network| network.ports).unwrap_or_default();
    let ports = published.into_iter().filter_map(|(inside, outside)| {
        let inside = inside.split('/').next()?.parse().ok()?;
        let outside = outside?.into_iter().find_map(|binding| binding.host_port?.parse().ok())?;
        Some((inside, outside))
    });
    let has_init = found.host_config.and_then(|config| config.init).unwrap_or(false);
    Inspected { state, ports: ports.collect(), pid, has_init }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_must_not_be_used_is_told_from_one_that_does_not_answer() {
        let check = |kind: io::ErrorKind, expected| {
            assert_eq!(NoAnswer::from_causes(&io::Error::from(kind)), expected);
        };
        check(io::ErrorKind::PermissionDenied, NoAnswer::PermissionDenied);
        check(io::ErrorKind::ConnectionRefused, NoAnswer::Other("connection refused".to_owned()));
    }
}
