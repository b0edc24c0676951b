//! Upgraded connections (WebSocket): caller and upstream negotiate the protocol, then the gateway
//! copies bytes in both directions.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::headers;
use crate::serve::{ConnectionPermit, Peer};

/// A request to switch the connection to another protocol.
#[derive(Debug)]
pub(super) struct Upgrade {
    protocol: HeaderValue,
    caller: OnUpgrade,
    /// The permit of the connection, held as long as the upgraded connection is open.
    permit: ConnectionPermit,
}

impl Upgrade {
    /// Returns the upgrade that a request asks for, if it is possible. An upgrade to HTTP/2 is not,
    /// and neither is that of a request whose response is stored.
    pub(super) fn requested<B>(request: &mut Request<B>, claimed: bool) -> Option<Self> {
        let caller = hyper::upgrade::on(&mut *request);
        let protocol = request.headers().get(UPGRADE)?.clone();
        let fit = request.version() == Version::HTTP_11 && !claimed;
        let mut words = protocol.as_bytes().split(|byte| *byte == b',');
        let h2c = words.any(|word| {
            word.trim_ascii().get(..3).is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"))
        });
        // Without `upgrade` in `Connection` the header `Upgrade` is not for this hop.
        let for_this_hop =
            headers::options(request.headers()).any(|word| word.eq_ignore_ascii_case("upgrade"));
        let permit = request.extensions().get::<Peer>()?.permit.clone();
        (fit && !h2c && for_this_hop).then_some(Self { protocol, caller, permit })
    }

    /// Adds the headers that request the upgrade.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(UPGRADE, self.protocol.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }

    /// Connects caller and upstream after the upstream has agreed to the upgrade.
    pub(super) fn join<B>(self, response: &mut Response<B>) {
        let upstream = hyper::upgrade::on(&mut *response);
        let protocol = response.headers().get(UPGRADE).cloned().unwrap_or(self.protocol);
        headers::strip(response.headers_mut());
        response.headers_mut().insert(UPGRADE, protocol);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        let (caller, permit) = (self.caller, self.permit);
        tokio::spawn(async move {
            // Dropping both sides closes both connections.
            tokio::select! {
                () = pass_on(caller, upstream) => {}
                () = permit.cut() => {}
            }
        });
    }
}

/// Copies bytes in both directions until one side closes.
async fn pass_on(caller: OnUpgrade, upstream: OnUpgrade) {
    let (upstream, caller) = match tokio::try_join!(upstream, caller) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "an upgrade failed"),
    };
    let (mut upstream, mut caller) = (TokioIo::new(upstream), TokioIo::new(caller));
    let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
}
