//! The service that a layer creates.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use semel_core::Store;
use tower_service::Service;

use crate::body::Body;
use crate::config::LayerConfig;
use crate::flow::RequestFlow;
use crate::future::ResponseFuture;
use crate::mode::Mode;
use crate::protocol::Protocol;

/// A service whose requests with a key run once. Created by a [`KeyedLayer`](crate::KeyedLayer).
pub struct KeyedService<I, P: Protocol, S: Store, M> {
    inner: I,
    config: Arc<LayerConfig<P, S>>,
    mode: PhantomData<M>,
}

impl<I, P: Protocol, S: Store, M> KeyedService<I, P, S, M> {
    pub(crate) fn new(inner: I, config: Arc<LayerConfig<P, S>>) -> Self {
        Self { inner, config, mode: PhantomData }
    }
}

impl<I: Clone, P: Protocol, S: Store, M> Clone for KeyedService<I, P, S, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.config))
    }
}

impl<I: fmt::Debug, P: Protocol, S: Store, M> fmt::Debug for KeyedService<I, P, S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<I, P, S, M, B, C> Service<Request<B>> for KeyedService<I, P, S, M>
where
    I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    I::Error: fmt::Display + Send + 'static,
    P: Protocol,
    S: Store,
    M: Mode<S>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    C: HttpBody<Data = Bytes> + Send + 'static,
    C::Error: Send,
{
    type Response = Response<Body<C>>;
    type Error = I::Error;
    type Future = ResponseFuture<I::Future, C, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        let (parts, body) = request.into_parts();
        if !P::applies(&self.config.routing, &parts) {
            let passing = inner.call(Request::from_parts(parts, Body::unread(body)));
            return ResponseFuture::passing(passing);
        }
        let flow = RequestFlow::<P, S, M>::new(Arc::clone(&self.config));
        // `parts` is boxed, because it is moved through several futures, and each would grow by its
        // size.
        ResponseFuture::keyed(flow.run(inner, Box::new(parts), body))
    }
}
