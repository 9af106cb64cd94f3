//! Pulls the image of a server.
//!
//! An image that exists locally is not pulled: it may have been built on this machine. A pull ends with its client.

use std::io;

use mainstay_api::{ApiError, ErrorKind, PullProgress};
use mainstay_core::{ContainerSpec, EngineKind, ServerSpec, Workload};
use mainstay_engine::{Engine as _, Pulled, StartError};
use tokio::sync::mpsc;

use super::Service;
use crate::control::Peer;

/// How many steps of a pull are reported together.
const STEPS: usize = 64;

impl Service {
    /// Pulls the image of a server unless it exists, and reports progress.
    pub(super) async fn pull(&self, spec: &ServerSpec, peer: &mut Peer) -> io::Result<()> {
        let Workload::Container(container) = &spec.workload else {
            let message = format!("`{}` does not run in a container", spec.name);
            return peer.fail(ApiError::new(ErrorKind::Invalid, message)).await;
        };
        let begun = match self.containers.prepare(spec).await {
            Ok(_) => return peer.answer(Ok(())).await,
            Err(StartError::NoImage { .. }) => self.containers.pull(container).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(steps) => {
                let ended = report_progress(steps, peer).await?;
                peer.answer(ended.map_err(|why| unavailable(container, &why))).await
            }
            Err(error) => {
                let message = format!("`{}`: {error}", spec.name);
                peer.fail(ApiError::new(ErrorKind::Unavailable, message)).await
            }
        }
    }
}

/// Reports the progress of a pull until it has ended. Returns why it failed, if it did.
async fn report_progress(
    mut steps: mpsc::Receiver<Pulled>,
    peer: &mut Peer,
) -> io::Result<Result<(), String>> {
    let mut batch = Vec::new();
    while steps.recv_many(&mut batch, STEPS).await > 0 {
        let mut latest = None;
        for step in batch.drain(..) {
            match step {
                Pulled::Bytes { done, total } => latest = Some(PullProgress { done, total }),
                Pulled::Done => return Ok(Ok(())),
                Pulled::Failed(why) => return Ok(Err(why)),
            }
        }
        if let Some(latest) = latest {
            peer.item(&latest).await?;
        }
    }
    Ok(Err("the engine closed the connection".to_owned()))
}

fn unavailable(container: &ContainerSpec, why: &str) -> ApiError {
    let image = &container.image;
    let engine = container.engine.unwrap_or(EngineKind::Docker);
    let message = format!("the image `{image}` cannot be pulled: {why}");
    ApiError::new(ErrorKind::Unavailable, message).with_help(format!(
        "nothing was changed; check its name and tag, whether its registry needs a login (`{engine} login`), and the network (`{engine} pull {image}`)"
    ))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::UnixStream;

    use super::*;

    async fn check(steps: Vec<Pulled>, items: &str, expected: Result<(), &str>) {
        let (sender, receiver) = mpsc::channel(16);
        for step in steps {
            sender.send(step).await.unwrap();
        }
        drop(sender);
        let (sending, mut receiving) = UnixStream::pair().unwrap();
        let mut peer = Peer::over(sending.into_split().1);
        let ended = report_progress(receiver, &mut peer).await.unwrap();
        drop(peer);
        let mut text = String::new();
        receiving.read_to_string(&mut text).await.unwrap();
        assert_eq!((text.as_str(), ended), (items, expected.map_err(str::to_owned)));
    }

    #[tokio::test]
    async fn a_pull_ends_as_the_engine_reports() {
        let bytes = |done| Pulled::Bytes { done, total: 9 };
        check(vec![Pulled::Done], "", Ok(())).await;
        check(vec![bytes(1), Pulled::Failed("no".to_owned())], "", Err("no")).await;
        let item = "{\"item\":{\"done\":2,\"total\":9}}\n";
        check(vec![bytes(1), bytes(2)], item, Err("the engine closed the connection")).await;
    }

    #[test]
    fn a_failed_pull_says_what_to_check() {
        let container = serde_json::json!({ "image": "team/time:1", "engine": "podman" });
        let container = serde_json::from_value(container).unwrap();
        let error = unavailable(&container, "unauthorized");
        assert_eq!(error.message, "the image `team/time:1` cannot be pulled: unauthorized");
        let help = error.help.unwrap();
        assert!(help.contains("podman login") && help.contains("podman pull team/time:1"));
    }
}
