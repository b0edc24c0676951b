//! Connections that become something else (WebSocket): asked for and agreed to by others, and from
//! then on bytes both ways.

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::headers;
use crate::serve::{ConnectionPermit, Peer};

/// A caller who asked for another protocol.
#[derive(Debug)]
pub(super) struct Upgrade {
    protocol: HeaderValue,
    caller: OnUpgrade,
    /// The caller's connection is still one of its listener's.
    permit: ConnectionPermit,
}

impl Upgrade {
    /// Whether the request asks for one that can be had. HTTP/2 cannot: it is spoken without asking. Nor
    /// can any for a request whose answer is to be kept.
    pub(super) fn asked<B>(request: &mut Request<B>, claimed: bool) -> Option<Self> {
        let caller = hyper::upgrade::on(&mut *request);
        let protocol = request.headers().get(UPGRADE)?.clone();
        let fit = request.version() == Version::HTTP_11 && !claimed;
        let mut words = protocol.as_bytes().split(|byte| *byte == b',');
        let h2c = words.any(|word| {
            word.trim_ascii().get(..3).is_some_and(|name| name.eq_ignore_ascii_case(b"h2c"))
        });
        // Without its word in `Connection` it is somebody else's, and was not meant for us.
        let meant =
            headers::options(request.headers()).any(|word| word.eq_ignore_ascii_case("upgrade"));
        let permit = request.extensions().get::<Peer>()?.permit.clone();
        (fit && !h2c && meant).then_some(Self { protocol, caller, permit })
    }

    /// Asks the upstream for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(UPGRADE, self.protocol.clone());
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }

    /// The upstream agrees: what either side says from now on is the other's.
    pub(super) fn join<B>(self, response: &mut Response<B>) {
        let upstream = hyper::upgrade::on(&mut *response);
        let protocol = response.headers().get(UPGRADE).cloned().unwrap_or(self.protocol);
        headers::strip(response.headers_mut());
        response.headers_mut().insert(UPGRADE, protocol);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        let (caller, permit) = (self.caller, self.permit);
        tokio::spawn(async move {
            // However it ends, both ends know.
            tokio::select! {
                () = pass_on(caller, upstream) => {}
                () = permit.cut() => {}
            }
        });
    }
}

/// Bytes both ways, until either side has had enough.
async fn pass_on(caller: OnUpgrade, upstream: OnUpgrade) {
    let (upstream, caller) = match tokio::try_join!(upstream, caller) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
    };
    let (mut upstream, mut caller) = (TokioIo::new(upstream), TokioIo::new(caller));
    let _ = tokio::io::copy_bidirectional(&mut caller, &mut upstream).await;
}
