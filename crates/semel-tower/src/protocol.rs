//! What differs between the protocols by which requests with a key arrive.
//!
//! [`flow`](crate::flow) runs a request; a protocol says which rules a request has, what makes two
//! requests the same, what a handler's response means for the claim, and how a stored outcome or a
//! refusal is written. Nothing here talks to a store.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response};
use http_body::Body as HttpBody;
use semel_core::{Context, Error, Fingerprint, Finished, Kind, OperationId, Outcome};

use crate::body::{Body, Whole};
use crate::problem::Problem;
use crate::rules::{ProtocolOptions, RouteRules};
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

    /// The settings of a layer that only this protocol has.
    #[doc(hidden)]
    type Settings: Clone + Default + fmt::Debug + Send + Sync + 'static;
    /// The rules of a route that only this protocol has.
    #[doc(hidden)]
    type Options: ProtocolOptions;
    /// What is needed of a request to write its response.
    #[doc(hidden)]
    type ReplyTo: Send + Sync + 'static;

    /// Updates what the settings derive from the rules, after either has changed.
    #[doc(hidden)]
    fn reindex(_: &mut Self::Settings, _: &RulesOf<Self>) {}

    /// Reports settings that can have no effect. Called when a service is made.
    #[doc(hidden)]
    fn check(_: &Self::Settings) {}

    /// Returns whether any rule may apply to a request. Cheap: requests that are not concerned pay
    /// for nothing else.
    #[doc(hidden)]
    fn applies(routing: &Routing<Self>, request: &Parts) -> bool;

    /// Returns the operation of a request and its rules; `None` if the request passes through.
    #[doc(hidden)]
    fn route(routing: &Routing<Self>, request: &Parts) -> Result<Option<Route<Self>>, Problem>;

    /// Returns the rules of an operation by its name.
    #[doc(hidden)]
    fn rules_of<'r>(routing: &'r Routing<Self>, operation: &str) -> &'r Arc<RulesOf<Self>>;

    /// Returns the fingerprint by which two requests under one key are the same request.
    #[doc(hidden)]
    fn fingerprint(
        request: &Parts,
        body: &Bytes,
        rules: &RulesOf<Self>,
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
        rules: &RulesOf<Self>,
        detached: bool,
    ) -> impl Future<Output = Finished<Response<Body<B>>>> + Send;

    /// Writes the response that is stored in an outcome.
    #[doc(hidden)]
    fn replay(outcome: &Outcome, to: &Self::ReplyTo) -> Result<Response<Whole>, Damaged>;

    /// Returns what an error of the executor means to the caller.
    #[doc(hidden)]
    fn problem(error: Error, rules: &RulesOf<Self>) -> Problem {
        Problem::of(error, rules.retry_after)
    }

    /// Writes a refusal.
    #[doc(hidden)]
    fn refuse(problem: Problem, settings: &Self::Settings, to: &Self::ReplyTo) -> Response<Bytes>;

    /// Returns how a caller wants to be answered before the operation has ended, if it does.
    #[doc(hidden)]
    fn respond_async(_: &Parts, _: &RulesOf<Self>) -> Option<RespondAsync> {
        None
    }

    /// Reads a request for the outcome of an operation; `None` if the request is not one.
    #[doc(hidden)]
    fn status_request(_: &Parts) -> Option<StatusRequest<'_>> {
        None
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The rules of a protocol's routes.
pub(crate) type RulesOf<P> = RouteRules<<P as Protocol>::Options>;

/// What the rules of a request are found by.
#[derive(Clone)]
pub struct Routing<P: Protocol> {
    pub(crate) key_headers: Arc<[HeaderName]>,
    /// The rules of routes that have none of their own.
    pub(crate) rules: Arc<RulesOf<P>>,
    pub(crate) settings: P::Settings,
}

impl<P: Protocol> Routing<P> {
    /// Returns whether a request has any of the headers that may carry a key.
    pub(crate) fn has_key(&self, headers: &HeaderMap) -> bool {
        self.key_headers.iter().any(|name| headers.contains_key(name))
    }
}

/// The operation of a request, and the rules of its route.
#[derive(Clone, Debug)]
pub struct Route<P: Protocol> {
    pub(crate) operation: String,
    pub(crate) rules: Arc<RulesOf<P>>,
}

/// Writes the response that says where and when to ask for the outcome of an operation.
pub(crate) type WriteAccepted = fn(OperationId, Duration) -> Response<Bytes>;

/// A caller's wish to be answered before its operation has ended.
#[derive(Clone, Copy, Debug)]
pub struct RespondAsync {
    /// How long the caller waits for the outcome first.
    pub(crate) wait: Duration,
    pub(crate) accepted: WriteAccepted,
}

/// A request for the outcome of an operation.
#[derive(Clone, Copy, Debug)]
pub struct StatusRequest<'r> {
    /// The id of the operation, as the caller sent it.
    pub(crate) id: &'r str,
    /// Answers while the operation runs.
    pub(crate) accepted: WriteAccepted,
}
