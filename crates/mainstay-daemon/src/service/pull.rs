//! Pulling the image of a server, so that it can be run.
//!
//! An image that is there is left alone: one that was built on this machine is in no registry. A pull
//! ends with its client.

use std::io;

use mainstay_api::{ApiError, ErrorKind, PullProgress};
use mainstay_core::{ContainerSpec, EngineKind, ServerSpec, Workload};
use mainstay_engine::{Engine as _, Pulled, StartError};
use tokio::sync::mpsc;

use super::Service;
use crate::control::Peer;

/// Steps of a pull that are taken in together.
const STEPS: usize = 64;

impl Service {
    /// Pulls the image of a server unless it is there, and reports progress.
    pub(super) async fn pull(&self, spec: &ServerSpec, peer: &mut Peer) -> io::Result<()> {
        let Workload::Container(container) = &spec.workload else {
            let message = format!("`{}` does not run in a container", spec.name);
            return peer.answer::<()>(Err(ApiError::new(ErrorKind::Invalid, message))).await;
        };
        let failed = |error: &StartError| {
            ApiError::new(ErrorKind::Unavailable, format!("`{}`: {error}", spec.name))
        };
        let begun = match self.containers.prepare(spec).await {
            Ok(_) => return peer.answer(Ok(())).await,
            Err(StartError::NoImage { .. }) => self.containers.pull(container).await,
            Err(error) => Err(error),
        };
        match begun {
            Ok(steps) => {
                let ended = hand_on(steps, peer).await?;
                peer.answer(ended.map_err(|why| unavailable(container, &why))).await
            }
            Err(error) => peer.answer::<()>(Err(failed(&error))).await,
        }
    }
}

/// Hands on how far a pull is, until it has ended; then why it failed, if it did.
async fn hand_on(
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
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut peer = Peer::over(ours.into_split().1);
        let ended = hand_on(receiver, &mut peer).await.unwrap();
        drop(peer);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).await.unwrap();
        assert_eq!((heard.as_str(), ended), (items, expected.map_err(str::to_owned)));
    }

    #[tokio::test]
    async fn a_pull_ends_as_its_engine_says() {
        let bytes = |done| Pulled::Bytes { done, total: 9 };
        check(vec![Pulled::Done], "", Ok(())).await;
        check(vec![bytes(1), Pulled::Failed("no".to_owned())], "", Err("no")).await;
        let item = "{\"item\":{\"done\":2,\"total\":9}}\n";
        check(vec![bytes(1), bytes(2)], item, Err("the engine closed the connection")).await;
    }

    #[test]
    fn who_cannot_have_an_image_is_told_what_to_check() {
        let container = serde_json::json!({ "image": "team/time:1", "engine": "podman" });
        let container = serde_json::from_value(container).unwrap();
        let error = unavailable(&container, "unauthorized");
        assert_eq!(error.message, "the image `team/time:1` cannot be pulled: unauthorized");
        let help = error.help.unwrap();
        assert!(help.contains("podman login") && help.contains("podman pull team/time:1"));
    }
}
