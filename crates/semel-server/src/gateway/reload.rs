//! Reading settings again while the gateway serves, and saying what of them had no effect.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;

use super::GatewayArguments;
use super::certificate::Certificate;
use super::routes;
use super::service::GatewayService;
use super::settings::{GatewaySettings, RouteSettings};
use crate::exit::ExitError;
use crate::settings::{LedgerSettings, ServerSettings};

/// What is needed to read it all again.
#[derive(Debug)]
pub(super) struct Reload {
    pub(super) arguments: GatewayArguments,
    pub(super) started: ServerSettings,
    pub(super) file: Option<PathBuf>,
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Reload {
    /// Reads routes, keys and the certificate again whenever SIGHUP asks for it.
    pub(super) async fn whenever(self, mut asked: Signal, service: GatewayService) {
        let mut routes = self.started.route.clone();
        while asked.recv().await.is_some() {
            match self.read(&service) {
                Ok(settings) => {
                    tracing::info!(routes = settings.route.len(), "the routes were read again");
                    self.tell(&settings, &routes);
                    routes = settings.route;
                }
                Err(failure) => {
                    tracing::error!(%failure, "the routes could not be read again; the old ones stay");
                }
            }
        }
    }

    fn read(&self, service: &GatewayService) -> Result<ServerSettings, ExitError> {
        let settings = self.arguments.over(ServerSettings::read(self.file.as_deref())?);
        // What may be wrong comes first: both change, or neither.
        let active = service.prepare(&self.started.gateway, &settings.route)?;
        self.certificate.as_ref().map_or(Ok(()), |certificate| certificate.reload())?;
        service.change(active);
        Ok(settings)
    }

    /// Says what was read and had no effect, and what the change of patterns means.
    fn tell(&self, now: &ServerSettings, before: &[RouteSettings]) {
        let changed = gateway_changed(&self.started.gateway, &now.gateway);
        if !changed.is_empty() {
            tracing::warn!(?changed, "[gateway] has changed, which takes a restart");
        }
        let changed = ledger_changed(&self.started.ledger, &now.ledger);
        if !changed.is_empty() {
            tracing::warn!(?changed, "[ledger] has changed, which takes a restart");
        }
        if now.gateway.upstream_ca.is_some() {
            tracing::info!("upstream_ca is read when the gateway starts, and was not read again");
        }
        let (gone, new) = (missing(before, &now.route), missing(&now.route, before));
        if !gone.is_empty() || !new.is_empty() {
            tracing::warn!(
                ?gone,
                ?new,
                "patterns have changed: operations are named after them, and a retry of what came \
                 under another name is a first request"
            );
        }
    }
}

/// The operations of some routes that others do not have.
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

/// The names of the settings in which two differ. All of them are looked at: one that is left out does
/// not compile.
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
