//! Certificate authorities.

use std::io;
use std::sync::{Arc, LazyLock};

use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tracing::debug;

/// The trusted certificate authorities. A cheap handle; certificates are loaded
/// when the first secure connection is made.
#[derive(Debug, Clone)]
pub struct Trust(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` stands for the authorities of this machine.
    only: Option<Vec<CertificateDer<'static>>>,
    config: OnceCell<Arc<ClientConfig>>,
}

impl Trust {
    /// The authorities that this machine trusts; Mozilla's where it names none. All handles share
    /// what was loaded.
    pub fn machine() -> Self {
        static MACHINE: LazyLock<Trust> = LazyLock::new(|| Trust::new(None));
        MACHINE.clone()
    }

    /// These authorities, in DER, and no others.
    pub fn only(authorities: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::new(Some(authorities.into_iter().map(CertificateDer::from).collect()))
    }

    fn new(only: Option<Vec<CertificateDer<'static>>>) -> Self {
        Self(Arc::new(Inner { only, config: OnceCell::new() }))
    }

    pub(super) async fn connector(&self) -> io::Result<TlsConnector> {
        let config = self.0.config.get_or_try_init(|| self.load()).await?;
        Ok(TlsConnector::from(Arc::clone(config)))
    }

    async fn load(&self) -> io::Result<Arc<ClientConfig>> {
        let roots = match &self.0.only {
            Some(only) => {
                let mut roots = RootCertStore::empty();
                for authority in only {
                    roots.add(authority.clone()).map_err(io::Error::other)?;
                }
                roots
            }
            None => tokio::task::spawn_blocking(machine_roots).await?,
        };
        config(roots).map(Arc::new).map_err(io::Error::other)
    }
}

fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        debug!(%error, "part of the machine's certificates is unreadable");
    }
    let (added, ignored) = roots.add_parsable_certificates(found.certs);
    debug!(added, ignored, "loaded the machine's certificates");
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
