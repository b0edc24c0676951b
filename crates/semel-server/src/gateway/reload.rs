//! Reloads settings while the gateway serves, and reports changes that need a restart.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;

use super::GatewayArguments;
use super::certificate::Certificate;
use super::routes;
use super::service::GatewayService;
use crate::exit::ExitError;
use crate::settings::{GatewaySettings, LedgerSettings, RouteSettings, ServerSettings};

/// The arguments, files and settings that a reload needs.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) arguments: GatewayArguments,
    pub(super) started: ServerSettings,
    pub(super) file: Option<PathBuf>,
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Reload {
    /// Reloads routes, keys and the certificate on every SIGHUP.
    pub(super) async fn run(self, mut hangup: Signal, service: GatewayService) {
        let mut routes = self.started.route.clone();
        while hangup.recv().await.is_some() {
            match self.read(&service) {
                Ok(settings) => {
                    tracing::info!(routes = settings.route.len(), "settings reloaded");
                    self.report(&settings, &routes);
                    routes = settings.route;
                }
                Err(failure) => {
                    tracing::error!(%failure, "the settings could not be reloaded; the old settings stay");
                }
            }
        }
    }

    fn read(&self, service: &GatewayService) -> Result<ServerSettings, ExitError> {
        let settings = self.arguments.over(ServerSettings::read(self.file.as_deref())?);
        // The steps that can fail come first, so that routes and certificate are both changed, or
        // neither is.
        let active = service.prepare(&self.started.gateway, &settings.route)?;
        self.certificate.as_ref().map_or(Ok(()), |certificate| certificate.reload())?;
        service.change(active);
        Ok(settings)
    }

    /// Logs the changed settings that need a restart, and warns about changed patterns.
    fn report(&self, now: &ServerSettings, before: &[RouteSettings]) {
        let changed = gateway_changed(&self.started.gateway, &now.gateway);
        if !changed.is_empty() {
            tracing::warn!(?changed, "these settings of [gateway] need a restart");
        }
        let changed = ledger_changed(&self.started.ledger, &now.ledger);
        if !changed.is_empty() {
            tracing::warn!(?changed, "these settings of [ledger] need a restart");
        }
        if now.gateway.upstream_ca.is_some() {
            tracing::info!("upstream_ca is only read at start, and was not reloaded");
        }
        let (gone, new) = (missing(before, &now.route), missing(&now.route, before));
        if !gone.is_empty() || !new.is_empty() {
            tracing::warn!(
                ?gone,
                ?new,
                "patterns have changed: they are part of keys, so a retry of a request under an old \
                 pattern counts as a first request"
            );
        }
    }
}

/// Returns the operations of `routes` that `others` lack.
fn missing(routes: &[RouteSettings], others: &[RouteSettings]) -> Vec<String> {
    let names = |routes: &[RouteSettings]| -> Vec<String> {
        let of = |route: &RouteSettings| {
            route.methods.iter().map(|method| routes::operation(method, route)).collect::<Vec<_>>()
        };
        routes.iter().flat_map(of).collect()
    };
    let others = names(others);
    names(routes).into_iter().filter(|name| !others.contains(name)).collect()
}

/// Returns the names of the settings that differ. It does not compile if a setting is left out.
macro_rules! differing {
    ($of:ident, $before:expr, $now:expr, $($name:ident)+) => {{
        let (before, now) = ($before, $now);
        let $of { $($name: _),+ } = before;
        let all = [$((stringify!($name), before.$name != now.$name)),+];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }};
}

fn gateway_changed(before: &GatewaySettings, now: &GatewaySettings) -> Vec<&'static str> {
    differing!(
        GatewaySettings, before, now,
        upstream listen admin_listen principal jwks jwt_issuer jwt_audience tenant_header key_headers
        upstream_timeout upstream_http2 upstream_ca tls_cert tls_key max_connections max_calls
        max_buffered header_timeout body_timeout trust_forwarded drain descriptor_set problem_types
        error_object cors public_path max_buffered_per_peer
    )
}

fn ledger_changed(before: &LedgerSettings, now: &LedgerSettings) -> Vec<&'static str> {
    differing!(
        LedgerSettings, before, now,
        store prefix keep lease wait wait_interval wait_max_interval
    )
}
