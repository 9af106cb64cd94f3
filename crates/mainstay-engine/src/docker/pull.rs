//! Pulling images.

use std::collections::HashMap;
use std::pin::pin;

use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;
use mainstay_core::ImageRef;
use tokio::sync::mpsc;

use super::api::{Api, Failure};
use crate::tasks::Tasks;

/// Steps that are queued; more are dropped.
const STEPS: usize = 16;

/// A step of a pull, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// Progress.
    Bytes {
        /// Bytes that have arrived.
        done: u64,
        /// Bytes that are known to be needed, so far.
        total: u64,
    },
    /// The image is complete.
    Done,
    /// The image cannot be pulled, for this reason.
    Failed(String),
}

/// Pulls an image in the background, until the receiver is dropped.
pub(super) fn pull(tasks: &Tasks, api: Api, image: &ImageRef) -> mpsc::Receiver<Pulled> {
    let (steps, receiver) = mpsc::channel(STEPS);
    let (name, version) = image.parts();
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(version).build();
    tasks.spawn(async move {
        let pulling = async {
            let mut layers = Layers::default();
            let mut answers = pin!(api.docker().create_image(Some(options), None, None));
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(info) => {
                        if let Some(step) = layers.update(info) {
                            steps.try_send(step).ok();
                        }
                    }
                    Err(error) => return Pulled::Failed(Failure::from(error).to_string()),
                }
            }
            Pulled::Done
        };
        tokio::select! {
            end = pulling => drop(steps.send(end).await),
            () = steps.closed() => {}
        }
    });
    receiver
}

/// The progress of each layer: bytes that have arrived, and all bytes.
#[derive(Debug, Default)]
struct Layers(HashMap<String, (u64, u64)>);

impl Layers {
    fn update(&mut self, info: CreateImageInfo) -> Option<Pulled> {
        let (id, status) = (info.id?, info.status?);
        let detail = info.progress_detail.unwrap_or_default();
        let layer = self.0.entry(id).or_default();
        match status.as_str() {
            "Downloading" => {
                let known = |bytes: Option<i64>| bytes.and_then(|bytes| u64::try_from(bytes).ok());
                *layer = (known(detail.current)?, known(detail.total)?);
            }
            "Download complete" | "Pull complete" => layer.0 = layer.1,
            _ => return None,
        }
        let sum = |part: fn(&(u64, u64)) -> u64| self.0.values().map(part).sum();
        Some(Pulled::Bytes { done: sum(|layer| layer.0), total: sum(|layer| layer.1) })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn says(id: &str, status: &str, progress: Option<(i64, i64)>) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: progress.map(|(current, total)| ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            ..CreateImageInfo::default()
        }
    }

    #[test]
    fn the_progress_of_all_layers_is_added_up() {
        let mut layers = Layers::default();
        let bytes = |done, total| Some(Pulled::Bytes { done, total });
        assert_eq!(layers.update(says("latest", "Pulling from x", None)), None);
        assert_eq!(layers.update(says("a", "Downloading", Some((5, 10)))), bytes(5, 10));
        assert_eq!(layers.update(says("b", "Downloading", Some((1, 90)))), bytes(6, 100));
        assert_eq!(layers.update(says("a", "Extracting", Some((1, 10)))), None);
        assert_eq!(layers.update(says("a", "Pull complete", None)), bytes(11, 100));
        assert_eq!(layers.update(says("c", "Download complete", None)), bytes(11, 100));
    }
}
