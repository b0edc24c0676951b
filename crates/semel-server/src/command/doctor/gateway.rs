//! Checks that a gateway would start with these settings, and reach its upstream.
//!
//! The check builds the same service as `semel gateway`, but does not listen and sends nothing.

use crate::command::check::{Check, Level};
use crate::gateway::{reach, rehearse};
use crate::settings::{GatewaySettings, PrincipalSource, ServerSettings};

/// Checks the gateway that the settings describe. Without gateway settings it reports only the
/// default principal.
pub(super) async fn check(settings: &ServerSettings) -> Vec<Check> {
    let gateway = &settings.gateway;
    let ours = *gateway != GatewaySettings::default() || !settings.route.is_empty();
    let mut checks = principal(gateway, ours);
    if !ours {
        return checks;
    }
    checks.push(match rehearse(settings) {
        Ok(()) => {
            let routes = settings.route.len();
            let found =
                format!("the gateway can be built: {routes} routes, all files are readable");
            Check::good("gateway", "gateway-builds", found)
        }
        Err(failure) => {
            let fix = "fix this error; `semel gateway` does not start with it either";
            Check::error("gateway", "gateway-refused", failure.to_string(), fix)
        }
    });
    for (name, address) in [("listen", &gateway.listen), ("admin_listen", &gateway.admin_listen)] {
        checks.extend(unlistenable(name, address).await);
    }
    checks.push(upstream(gateway).await);
    checks
}

/// Reports an address on which no process can listen. Does not check whether the port is in use:
/// the gateway itself may be using it.
async fn unlistenable(name: &str, address: &str) -> Option<Check> {
    if name == "admin_listen" && address == "off" {
        return None;
    }
    let error = tokio::net::lookup_host(address).await.err()?;
    let found = format!("gateway.{name} = \"{address}\" is not an address to listen on: {error}");
    let fix = "write it as 127.0.0.1:7080 or [::]:7080";
    Some(Check::error("gateway", "listen-invalid", found, fix))
}

async fn upstream(gateway: &GatewaySettings) -> Check {
    let Some(upstream) = &gateway.upstream else {
        let found = "the settings name no upstream";
        let fix = "set gateway.upstream, or start the gateway with --upstream URL";
        return Check::note("gateway", "upstream-missing", found, fix);
    };
    match reach(gateway, upstream).await {
        Ok(()) => {
            Check::good("gateway", "upstream-reached", format!("{upstream} takes connections"))
        }
        Err(failure) => {
            let fix = "check that the service runs, and that its address and certificate are right; until \
                       then every call gets 502";
            Check::error("gateway", "upstream-unreachable", failure.to_string(), fix)
        }
    }
}

/// Reports how callers are distinguished. A source with which one caller can pose as another is a
/// warning, if the settings configure a gateway. A header or cookie is only a note, because it must
/// stay the same over a retry: an API key does, a token may not, and no setting shows which of them
/// it is.
fn principal(gateway: &GatewaySettings, ours: bool) -> Vec<Check> {
    let (level, fix) = match &gateway.principal {
        PrincipalSource::Header(_) | PrincipalSource::Cookie(_) => (
            Level::Note,
            "nothing, if it stays the same over a retry, as an API key does; with tokens or sessions \
             that are renewed, set principal = \"jwt-claim:sub\", and jwks = FILE unless a proxy in \
             front has checked the tokens",
        ),
        PrincipalSource::Claim(_) => {
            (Level::Warning, "set jwks = FILE, unless a proxy in front has checked the tokens")
        }
        PrincipalSource::Global => (
            Level::Warning,
            "set principal to what distinguishes callers, such as \"jwt-claim:sub\"",
        ),
    };
    let level = if ours { level } else { Level::Note };
    let check = |found| Check { level, ..Check::note("gateway", "principal", found, fix) };
    let mut checks: Vec<Check> =
        gateway.principal.warnings(gateway.jwks.is_some()).into_iter().map(check).collect();
    if checks.is_empty() {
        let found = format!("callers are distinguished by {}", gateway.principal);
        checks.push(Check::good("gateway", "principal", found));
    }
    checks
}
