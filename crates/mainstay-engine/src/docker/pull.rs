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

/// Steps on their way to whoever waits; more than that are not worth telling.
const STEPS: usize = 16;

/// A step of a pull, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// So much of what is known to be needed has arrived.
    Bytes {
        /// Bytes that are here.
        done: u64,
        /// Bytes that are known to be needed, so far.
        total: u64,
    },
    /// The image is here.
    Done,
    /// It cannot be had; the text says why.
    Failed(String),
}

/// Begins to pull an image. That goes on until its end is told or nobody listens any more.
pub(super) fn pull(tasks: &Tasks, api: Api, image: &ImageRef) -> mpsc::Receiver<Pulled> {
    let (steps, told) = mpsc::channel(STEPS);
    let (name, version) = image.parts();
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(version).build();
    tasks.spawn(async move {
        let pulling = async {
            let mut layers = Layers::default();
            let mut answers = pin!(api.docker().create_image(Some(options), None, None));
            while let Some(answer) = answers.next().await {
                match answer {
                    Ok(info) => {
                        if let Some(step) = layers.learn(info) {
                            // The next one says more.
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
    told
}

/// How far each layer has come.
#[derive(Debug, Default)]
struct Layers(HashMap<String, (u64, u64)>);

impl Layers {
    /// Takes in what an engine says. What is unpacked has arrived.
    fn learn(&mut self, info: CreateImageInfo) -> Option<Pulled> {
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
        assert_eq!(layers.learn(says("latest", "Pulling from x", None)), None);
        assert_eq!(layers.learn(says("a", "Downloading", Some((5, 10)))), bytes(5, 10));
        assert_eq!(layers.learn(says("b", "Downloading", Some((1, 90)))), bytes(6, 100));
        assert_eq!(layers.learn(says("a", "Extracting", Some((1, 10)))), None);
        assert_eq!(layers.learn(says("a", "Pull complete", None)), bytes(11, 100));
        assert_eq!(layers.learn(says("c", "Download complete", None)), bytes(11, 100));
    }
}
