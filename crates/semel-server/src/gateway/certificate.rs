//! The gateway's TLS certificate, which can be reloaded while the gateway serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::exit::ExitError;
use crate::settings::GatewaySettings;

/// A certificate chain and its private key, read from two files.
#[derive(Debug)]
pub(super) struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl Certificate {
    /// Reads the certificate files in the settings; `None` if there are none.
    pub(super) fn read(settings: &GatewaySettings) -> Result<Option<Arc<Self>>, ExitError> {
        let (chain, key) = match (&settings.tls_cert, &settings.tls_key) {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain.clone(), key.clone()),
            (Some(_), None) => return Err(ExitError::usage("--tls-cert needs --tls-key")),
            (None, Some(_)) => return Err(ExitError::usage("--tls-key needs --tls-cert")),
        };
        let current = ArcSwap::from_pointee(load(&chain, &key)?);
        Ok(Some(Arc::new(Self { chain, key, current })))
    }

    /// Reads the files again. Open connections keep their certificate.
    pub(super) fn reload(&self) -> Result<(), ExitError> {
        self.current.store(Arc::new(load(&self.chain, &self.key)?));
        Ok(())
    }

    /// Returns the TLS configuration for HTTP/2 and HTTP/1.1.
    pub(super) fn config(self: &Arc<Self>) -> Arc<ServerConfig> {
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(self) as _;
        let mut config = ServerConfig::builder().with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

fn load(chain: &Path, key: &Path) -> Result<CertifiedKey, ExitError> {
    let wrong = |flag: &str, path: &Path, error: &dyn std::fmt::Display| {
        ExitError::usage(format_args!("{flag} {}: {error}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong("--tls-cert", chain, &error))?;
    if certificates.is_empty() {
        return Err(wrong("--tls-cert", chain, &"the file has no certificate"));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("--tls-key", key, &error))?;
    let provider = CryptoProvider::get_default().expect("installed when the program started");
    CertifiedKey::from_der(certificates, secret, provider)
        .map_err(|error| wrong("--tls-key", key, &error))
}
