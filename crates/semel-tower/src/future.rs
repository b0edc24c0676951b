//! The response future of a layer's service: the future of the inner service, or a request flow.
//!
//! A request that passes through needs no allocation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;

use crate::body::Body;

pin_project! {
    /// The response future of a layer's service.
    pub struct ResponseFuture<F, C: HttpBody, E> {
        #[pin]
        kind: Kind<F, C, E>,
    }
}

type Keyed<C, E> = Pin<Box<dyn Future<Output = Result<Response<Body<C>>, E>> + Send>>;

pin_project! {
    #[project = Projected]
    enum Kind<F, C: HttpBody, E> {
        Passing { #[pin] passing: F },
        Keyed { keyed: Keyed<C, E> },
    }
}

impl<F, C: HttpBody, E> ResponseFuture<F, C, E> {
    /// Wraps the inner service's future.
    pub(crate) fn passing(passing: F) -> Self {
        Self { kind: Kind::Passing { passing } }
    }

    /// Wraps a request flow.
    pub(crate) fn keyed(
        keyed: impl Future<Output = Result<Response<Body<C>>, E>> + Send + 'static,
    ) -> Self {
        Self { kind: Kind::Keyed { keyed: Box::pin(keyed) } }
    }
}

impl<F, C, E> Future for ResponseFuture<F, C, E>
where
    F: Future<Output = Result<Response<C>, E>>,
    C: HttpBody<Data = Bytes>,
{
    type Output = Result<Response<Body<C>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            Projected::Passing { passing } => {
                Poll::Ready(ready!(passing.poll(cx)).map(|response| response.map(Body::unread)))
            }
            Projected::Keyed { keyed } => keyed.as_mut().poll(cx),
        }
    }
}
