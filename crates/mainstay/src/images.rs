//! Requests that need the images of containers: missing images are pulled, then the request is repeated once.
//!
//! The daemon reports a missing image before it changes anything, so the repetition is safe.

use mainstay_api::{ErrorKind, PullProgress, Request};
use mainstay_core::{ContainerSpec, ServerSpec, Workload};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::CliError;
use crate::remote::Remote;

/// Sends a request to run these servers. `what` is shown if that takes long.
pub(crate) async fn ask_with_images<T: DeserializeOwned>(
    ctx: &mut Context,
    what: &str,
    request: &Request,
    specs: &[ServerSpec],
) -> Result<T, CliError> {
    match ctx.ask(what, request).await {
        Err(CliError::Api(error)) if error.kind == ErrorKind::NoImage => {
            for spec in specs {
                if let Workload::Container(container) = &spec.workload {
                    pull(ctx, spec, container).await?;
                }
            }
            ctx.ask(what, request).await
        }
        answer => answer,
    }
}

/// Pulls the image of a server if it is missing.
async fn pull(
    ctx: &mut Context,
    spec: &ServerSpec,
    container: &ContainerSpec,
) -> Result<(), CliError> {
    let remote = Remote::of(ctx)?;
    let bar = ctx.ui.pulling(&container.image);
    let request = Request::Pull { spec: Box::new(spec.clone()) };
    let each = |steps: Vec<PullProgress>| {
        if let Some(PullProgress { done, total }) = steps.last() {
            bar.set_length(*total);
            bar.set_position(*done);
        }
        Ok(())
    };
    let done = remote.stream(&request, each).await;
    bar.finish_and_clear();
    done
}
