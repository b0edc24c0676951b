//! The differences between the protocols of requests with a key.
//!
//! [`flow`](crate::flow) runs a request. The protocol determines which rules apply to a request,
//! when two requests are the same, how a handler's response settles the claim, and how a stored
//! outcome or a refusal is written. This module does not use a store.

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

/// A protocol of requests with a key: [`Http`](crate::http::Http) or `Grpc`. Sealed.
pub trait Protocol: sealed::Sealed + Copy + fmt::Debug + Send + Sync + 'static {
    /// The kind of the protocol's keys.
    #[doc(hidden)]
    const KIND: Kind;
    /// The headers that carry keys by default.
    #[doc(hidden)]
    const KEY_HEADERS: [&'static str; 2];
    /// The protocol's own word for a header, used in messages.
    #[doc(hidden)]
    const HEADER: &'static str;

    /// The settings of a layer that only this protocol has.
    #[doc(hidden)]
    type Settings: Clone + Default + fmt::Debug + Send + Sync + 'static;
    /// The rules of a route that only this protocol has.
    #[doc(hidden)]
    type Options: ProtocolOptions;
    /// The parts of a request that are needed to write its response.
    #[doc(hidden)]
    type ReplyTo: Send + Sync + 'static;

    /// Recomputes the settings that are derived from the rules, after a change of either.
    #[doc(hidden)]
    fn reindex(_: &mut Self::Settings, _: &RulesOf<Self>) {}

    /// Logs settings that can have no effect. Called when a service is created.
    #[doc(hidden)]
    fn check(_: &Self::Settings) {}

    /// Returns whether any rule may apply to a request. This check is cheap, and the only cost of
    /// requests to which no rule applies.
    #[doc(hidden)]
    fn applies(routing: &Routing<Self>, request: &Parts) -> bool;

    /// Returns the operation of a request and its rules; `None` if the request passes through.
    #[doc(hidden)]
    fn route(routing: &Routing<Self>, request: &Parts) -> Result<Option<Route<Self>>, Problem>;

    /// Returns the rules of an operation by its name.
    #[doc(hidden)]
    fn rules_of<'r>(routing: &'r Routing<Self>, operation: &str) -> &'r Arc<RulesOf<Self>>;

    /// Returns the fingerprint of a request. Two requests under one key are the same if their
    /// fingerprints are equal.
    #[doc(hidden)]
    fn fingerprint(
        request: &Parts,
        body: &Bytes,
        rules: &RulesOf<Self>,
    ) -> Result<Fingerprint, Problem>;

    /// Removes the headers that concern one caller only, before the handler sees the request.
    #[doc(hidden)]
    fn prepare(_: &mut HeaderMap) {}

    /// Copies the parts of a request that are needed to write its response, because the handler
    /// gets the request itself.
    #[doc(hidden)]
    fn reply_to(request: &Parts) -> Self::ReplyTo;

    /// Settles the claim according to the handler's response. `detached` means that the caller
    /// already got a 202 and will look the outcome up.
    #[doc(hidden)]
    fn settle<B: HttpBody<Data = Bytes, Error: Send> + Send>(
        context: &Context,
        response: Response<B>,
        rules: &RulesOf<Self>,
        detached: bool,
    ) -> impl Future<Output = Finished<Response<Body<B>>>> + Send;

    /// Creates the response from a stored outcome.
    #[doc(hidden)]
    fn replay(outcome: &Outcome, to: &Self::ReplyTo) -> Result<Response<Whole>, Damaged>;

    /// Returns the problem for an error of the executor.
    #[doc(hidden)]
    fn problem(error: Error, rules: &RulesOf<Self>) -> Problem {
        Problem::of(error, rules.retry_after)
    }

    /// Creates the response for a problem.
    #[doc(hidden)]
    fn refuse(problem: Problem, settings: &Self::Settings, to: &Self::ReplyTo) -> Response<Bytes>;

    /// Returns the caller's preference to be answered before the operation has ended, if the
    /// request has it.
    #[doc(hidden)]
    fn respond_async(_: &Parts, _: &RulesOf<Self>) -> Option<RespondAsync> {
        None
    }

    /// Parses a request for the outcome of an operation; `None` if the request is not one.
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

/// The key headers, rules and settings of a layer, from which the rules of a request are found.
#[derive(Clone)]
pub struct Routing<P: Protocol> {
    pub(crate) key_headers: Arc<[HeaderName]>,
    /// The default rules, for routes that have no rules of their own.
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

/// Creates the 202 response for an operation, with the delay before the caller should look the
/// outcome up.
pub(crate) type WriteAccepted = fn(OperationId, Duration) -> Response<Bytes>;

/// A caller's preference to be answered before its operation has ended.
#[derive(Clone, Copy, Debug)]
pub struct RespondAsync {
    /// The time for which the caller first waits for the outcome.
    pub(crate) wait: Duration,
    pub(crate) accepted: WriteAccepted,
}

/// A request for the outcome of an operation.
#[derive(Clone, Copy, Debug)]
pub struct StatusRequest<'r> {
    /// The id of the operation, as the caller sent it.
    pub(crate) id: &'r str,
    /// Creates the response that is sent while the operation runs.
    pub(crate) accepted: WriteAccepted,
}
