//! Describing servers, and registering them with clients.

use mainstay_api::{ApiError, Around, Described, Outcome};
use mainstay_core::ServerSpec;

use super::Service;

impl Service {
    pub(super) async fn run(
        &self,
        spec: ServerSpec,
        replace: bool,
        around: &Around,
    ) -> Result<Described, ApiError> {
        if let Some(named) = &spec.clients.only {
            self.context.clients.need(&Vec::from_iter(named.clone()), around).await?;
        }
        let described = self.registry.apply(vec![spec], replace, around).await?;
        let names: Vec<_> = described.iter().map(|(name, _)| name.clone()).collect();
        let clients = self.registry.register(&names).await;
        let unchanged = described.iter().all(|(_, changed)| !changed);
        Ok(Described { server: self.info(&names[0])?, clients, unchanged })
    }

    pub(super) async fn import(
        &self,
        specs: Vec<ServerSpec>,
        replace: bool,
        around: &Around,
    ) -> Result<Vec<Outcome>, ApiError> {
        let described = self.registry.apply(specs, replace, around).await?;
        let names: Vec<_> = described.iter().map(|(name, _)| name.clone()).collect();
        let mut reports = self.registry.register(&names).await;
        let outcome = |(name, changed)| {
            let status = self.info(&name).ok().map(|info| info.status);
            let clients = reports.extract_if(.., |report| report.server == name).collect();
            Outcome { name, changed, status, clients }
        };
        Ok(described.into_iter().map(outcome).collect())
    }
}
