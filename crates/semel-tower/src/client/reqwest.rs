//! Outbound calls through reqwest: a reqwest client as a tower service, and calls in reqwest's own
//! types.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use reqwest::ResponseBuilderExt as _;
use tower_layer::Layer as _;
use tower_service::Service;

use super::body::Replay;
use super::key::CallKey;
use super::layer::CallLayer;
use super::service::{Call, Error};

/// A [`reqwest::Client`] as a tower service of `http`'s requests and responses.
///
/// [`CallLayer::reqwest`] creates this service; other layers can wrap it as well.
///
/// ```no_run
/// use bytes::Bytes;
/// use http::Request;
/// use semel_tower::client::ReqwestService;
/// use tower::ServiceExt as _;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let service = ReqwestService::new(reqwest::Client::new());
/// let request = Request::get("http://payments.internal/health").body(Bytes::new())?;
/// println!("{}", service.oneshot(request).await?.status());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReqwestService(reqwest::Client);

impl ReqwestService {
    /// Wraps a client. Clones of a client share its connections.
    pub fn new(client: reqwest::Client) -> Self {
        Self(client)
    }
}

impl From<reqwest::Client> for ReqwestService {
    fn from(client: reqwest::Client) -> Self {
        Self::new(client)
    }
}

impl<B: Into<reqwest::Body>> Service<Request<B>> for ReqwestService {
    type Response = Response<reqwest::Body>;
    type Error = reqwest::Error;
    type Future = ReqwestFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), reqwest::Error>> {
        Service::poll_ready(&mut self.0, cx)
    }

    fn call(&mut self, request: Request<B>) -> ReqwestFuture {
        let state = match reqwest::Request::try_from(request) {
            Ok(request) => State::Sent { pending: Service::call(&mut self.0, request) },
            Err(error) => State::Refused { error: Some(error) },
        };
        ReqwestFuture { state }
    }
}

type Pending = <reqwest::Client as Service<reqwest::Request>>::Future;

pin_project! {
    /// The response future of a [`ReqwestService`].
    pub struct ReqwestFuture {
        #[pin]
        state: State,
    }
}

pin_project! {
    #[project = Projected]
    enum State {
        Sent { #[pin] pending: Pending },
        // The request has no URL that reqwest accepts.
        Refused { error: Option<reqwest::Error> },
    }
}

impl std::fmt::Debug for ReqwestFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReqwestFuture")
    }
}

impl Future for ReqwestFuture {
    type Output = Result<Response<reqwest::Body>, reqwest::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Sent { pending } => Poll::Ready(ready!(pending.poll(cx)).map(with_url)),
            Projected::Refused { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

/// Converts the response and keeps its URL in the extension from which reqwest reads it.
fn with_url(response: reqwest::Response) -> Response<reqwest::Body> {
    let url = response.url().clone();
    let mut response = Response::from(response);
    if let Ok(named) = Response::builder().url(url).body(()) {
        response.extensions_mut().extend(named.into_parts().0.extensions);
    }
    response
}

/// Copies a body that is held in memory; a stream cannot be sent again.
impl Replay for reqwest::Body {
    fn replay(&self) -> Option<Self> {
        self.as_bytes().map(|bytes| bytes.to_vec().into())
    }
}

impl CallLayer {
    /// Returns a service that sends calls through `client`. The client's own retries and redirects
    /// must be off: a redirect would send body and key to another address, or turn a POST into a
    /// GET whose response is taken for the response to the POST.
    ///
    /// ```no_run
    /// use semel_tower::client::{CallKey, CallLayer, Dialect};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
    /// let stripe = CallLayer::new(Dialect::stripe()).reqwest(client.clone());
    ///
    /// let charge = client.post("https://api.stripe.com/v1/charges").body("amount=1999").build()?;
    /// // Inside an execution: CallKey::of(&claim, "charge")?
    /// let answer = stripe.execute_under(CallKey::new("order-7/charge")?, charge).await?;
    /// println!("{} {}", answer.status(), answer.text().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reqwest(&self, client: reqwest::Client) -> Call<ReqwestService> {
        self.layer(ReqwestService::new(client))
    }
}

impl Call<ReqwestService> {
    /// Sends a request in reqwest's types. The key of the call is the one in the request's header,
    /// or a fresh one: see the [module](super).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn execute(
        &self,
        request: reqwest::Request,
    ) -> Result<reqwest::Response, Error<reqwest::Error>> {
        self.send(request, None).await
    }

    /// Sends a request in reqwest's types, with `key` as the key of the call.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn execute_under(
        &self,
        key: CallKey,
        request: reqwest::Request,
    ) -> Result<reqwest::Response, Error<reqwest::Error>> {
        self.send(request, Some(key)).await
    }

    async fn send(
        &self,
        request: reqwest::Request,
        key: Option<CallKey>,
    ) -> Result<reqwest::Response, Error<reqwest::Error>> {
        let request = Request::<reqwest::Body>::try_from(request);
        let mut request = request.map_err(|source| Error::Service { source, key: key.clone() })?;
        if let Some(key) = key {
            request.extensions_mut().insert(key);
        }
        // A reqwest client is always ready.
        let response = self.clone().call(request).await?;
        Ok(response.map(reqwest::Body::wrap).into())
    }
}
