//! What differs between the protocols by which requests with a key arrive.
//!
//! [`flow`](crate::flow) runs a request; a protocol says which rules a request has, what makes two
//! requests the same, what a handler's response means for the claim, and how a stored outcome or a
//! refusal is written. Nothing here talks to a store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response};
use http_body::Body as HttpBody;
use semel_core::{Context, Error, Fingerprint, Finished, Kind, Outcome, Store};

use crate::body::{Body, Whole};
use crate::layer::LayerConfig;
use crate::problem::{Problem, Slug};
use crate::respond_async::RespondAsync;
use crate::rules::RouteRules;
use crate::stored_response::Damaged;

/// A protocol by which requests with a key arrive: [`Http`](crate::http::Http) or `Grpc`. Sealed.
pub trait Protocol: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The kind of its keys.
    #[doc(hidden)]
    const KIND: Kind;
    /// The headers that carry keys by default.
    #[doc(hidden)]
    const KEY_HEADERS: [&'static str; 2];
    /// What its specification calls a header.
    #[doc(hidden)]
    const HEADER: &'static str;
    /// The bytes around a message that limits do not count.
    #[doc(hidden)]
    const FRAMING: usize;

    /// The settings of a layer that only this protocol has.
    #[doc(hidden)]
    type Settings: Clone + Default + fmt::Debug + Send + Sync + 'static;
    /// The rules of a route that only this protocol has.
    #[doc(hidden)]
    type Options: Clone + Default + fmt::Debug + Send + Sync + 'static;
    /// What is needed of a request to write its response.
    #[doc(hidden)]
    type ReplyTo: Send + Sync + 'static;

    /// Updates what the settings derive from the rules, after either has changed.
    #[doc(hidden)]
    fn reindex(_: &mut Self::Settings, _: &Arc<RouteRules<Self>>) {}

    /// Returns whether any rule may apply to a request. Cheap: requests that are not concerned pay
    /// for nothing else.
    #[doc(hidden)]
    fn applies<S: Store>(config: &LayerConfig<Self, S>, request: &Parts) -> bool;

    /// Returns the operation of a request and its rules; `None` if the request passes through.
    #[doc(hidden)]
    fn route<S: Store>(
        config: &LayerConfig<Self, S>,
        request: &Parts,
    ) -> Result<Option<Route<Self>>, Problem>;

    /// Returns the fingerprint by which two requests under one key are the same request.
    #[doc(hidden)]
    fn fingerprint(
        request: &Parts,
        body: &Bytes,
        rules: &RouteRules<Self>,
    ) -> Result<Fingerprint, Problem>;

    /// Removes the headers that concern one caller only, before the handler sees the request.
    #[doc(hidden)]
    fn prepare(_: &mut HeaderMap) {}

    /// Copies what is needed to write the response: the handler gets the request itself.
    #[doc(hidden)]
    fn reply_to(request: &Parts) -> Self::ReplyTo;

    /// Settles the claim by the handler's response. `detached`: its caller was answered
    /// before, and asks for the outcome later.
    #[doc(hidden)]
    fn settle<B: HttpBody<Data = Bytes, Error: Send> + Send>(
        context: &Context,
        response: Response<B>,
        rules: &RouteRules<Self>,
        detached: bool,
    ) -> impl Future<Output = Finished<Response<Body<B>>>> + Send;

    /// Writes the response that is stored in an outcome.
    #[doc(hidden)]
    fn replay(outcome: &Outcome, to: &Self::ReplyTo) -> Result<Response<Whole>, Damaged>;

    /// Returns what an error of the executor means to the caller.
    #[doc(hidden)]
    fn problem(error: Error, rules: &RouteRules<Self>) -> Problem {
        Problem::of(error, rules.retry_after)
    }

    /// Writes a refusal.
    #[doc(hidden)]
    fn refuse(problem: Problem, settings: &Self::Settings, to: &Self::ReplyTo) -> Response<Bytes>;

    /// Returns how a caller wants to be answered before the operation has ended, if it does.
    #[doc(hidden)]
    fn respond_async(_: &Parts, _: &RouteRules<Self>) -> Option<RespondAsync> {
        None
    }

    /// Returns whether a request asks for the status of an operation.
    #[doc(hidden)]
    fn is_status_request(_: &Parts) -> bool {
        false
    }

    /// Answers a request for the status of an operation.
    #[doc(hidden)]
    fn status<S: Store>(
        _: &LayerConfig<Self, S>,
        _: &Parts,
    ) -> impl Future<Output = Result<Response<Whole>, Problem>> + Send {
        std::future::ready(Err(Problem::new(Slug::OperationUnknown, "there is none")))
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The operation of a request, and the rules of its route.
#[derive(Clone, Debug)]
pub struct Route<P: Protocol> {
    pub(crate) operation: String,
    pub(crate) rules: Arc<RouteRules<P>>,
}
