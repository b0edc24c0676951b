//! The gateway's service, which matches a request to its route and passes it to the HTTP or the
//! gRPC layer.
//!
//! A reload swaps everything at once: a request sees either the old routes or the new ones.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use semel_core::{AnyStore, Command, Executor};
use semel_tower::grpc::{GrpcLayer, GrpcRules, GrpcService};
use semel_tower::http::{Idempotency, IdempotencyLayer, Problem, Rules, Slug};
use semel_tower::{Body, Fenced};
use tower::{Layer as _, Service};

use super::body::ResponseBody;
use super::budget::{BodyBudget, MeteredBody, Reservation};
use super::forward::{Forward, RETRY_AFTER, count, plain};
use super::headers::{self, options};
use super::identity;
use super::local::LocalResponses;
use super::routes::{self, Matched, Routes};
use super::token::TokenVerifier;
use crate::exit::ExitError;
use crate::serve::Peer;
use crate::settings::{GatewaySettings, PrincipalSource, RouteSettings};

/// The largest request body that the layers hold, in bytes, unless a route sets another limit.
const MAX_REQUEST: usize = 1 << 20;
/// The number of bytes before a gRPC message: its flag and its length.
const PREFIX: usize = 5;

/// The routes and layers that a reload replaces.
pub(super) struct ActiveRoutes {
    routes: Routes,
    http: Idempotency<Forward, AnyStore, Fenced>,
    grpc: GrpcService<Forward, AnyStore, Fenced>,
    /// The gRPC layer, which determines which paths are gRPC methods.
    methods: GrpcLayer<AnyStore>,
    /// Headers that may carry the key.
    keys: Vec<HeaderName>,
    /// The headers that identify a request, each with the problem of a request without it.
    identifying: Vec<(HeaderName, Slug)>,
    problems: String,
    error_object: bool,
    local: LocalResponses,
    /// Whether the forwarding headers of a proxy in front are trusted.
    trusted: bool,
}

/// The service that the gateway's listener calls.
#[derive(Clone)]
pub(super) struct GatewayService {
    active: Arc<ArcSwap<ActiveRoutes>>,
    executor: Executor<AnyStore>,
    forward: Forward,
    budget: Arc<BodyBudget>,
}

impl GatewayService {
    pub(super) fn new(
        settings: &GatewaySettings,
        routes: &[RouteSettings],
        executor: Executor<AnyStore>,
        forward: Forward,
    ) -> Result<Self, ExitError> {
        let active = active(settings, routes, &executor, &forward)?;
        let budget = BodyBudget::new(settings.max_buffered, settings.max_buffered_per_peer);
        Ok(Self { active: Arc::new(ArcSwap::from_pointee(active)), executor, forward, budget })
    }

    /// Builds new routes, and reads the files in the settings again.
    pub(super) fn prepare(
        &self,
        settings: &GatewaySettings,
        routes: &[RouteSettings],
    ) -> Result<ActiveRoutes, ExitError> {
        active(settings, routes, &self.executor, &self.forward)
    }

    /// Replaces the routes by `active`.
    pub(super) fn change(&self, active: ActiveRoutes) {
        self.active.store(Arc::new(active));
    }
}

fn active(
    settings: &GatewaySettings,
    all: &[RouteSettings],
    executor: &Executor<AnyStore>,
    forward: &Forward,
) -> Result<ActiveRoutes, ExitError> {
    let tokens = token_verifier(settings)?;
    if let Some(route) = all.iter().find(|route| route.max_request > Some(most_held(settings))) {
        return Err(ExitError::usage(format_args!(
            "the route {}: max_request is larger than gateway.max_buffered; raise one or lower the other",
            route.path
        )));
    }
    let identity = || {
        (
            identity::tenant(settings.tenant_header.clone()),
            identity::principal(&settings.principal, tokens.clone()),
        )
    };
    let ((tenant, principal), keys) = (identity(), settings.key_headers.clone());
    let mut http = IdempotencyLayer::fenced(executor.clone(), tenant, principal)
        .rules(Rules::new().body_timeout(settings.body_timeout).command(Command::attended))
        .key_headers(keys)
        .problem_types(settings.problem_types.as_str())
        .error_object(settings.error_object)
        .operation(named);
    let (tenant, principal) = identity();
    let metadata = settings.key_headers.iter().cloned();
    let genesis = HeaderName::from_static("x-idem-key");
    let all_keys: Vec<HeaderName> = metadata.chain([genesis]).collect();
    let mut grpc = GrpcLayer::fenced(executor.clone(), tenant, principal)
        .rules(GrpcRules::new().body_timeout(settings.body_timeout).command(Command::attended))
        .key_metadata(all_keys.iter().cloned());
    for route in all {
        if route.grpc {
            grpc = grpc.unary(&route.path, routes::grpc_rules(route, settings));
            continue;
        }
        let rules = routes::rules(route, settings);
        for method in &route.methods {
            http = http.route(&routes::operation(method, route), rules.clone());
        }
    }
    if let Some(path) = &settings.descriptor_set {
        grpc = described(grpc, path)?;
    }
    Ok(ActiveRoutes {
        routes: Routes::new(all)?,
        http: http.layer(forward.clone()),
        grpc: grpc.layer(forward.clone()),
        methods: grpc,
        keys: all_keys,
        identifying: identifying(settings),
        problems: settings.problem_types.clone(),
        error_object: settings.error_object,
        local: LocalResponses::new(settings),
        trusted: settings.trust_forwarded,
    })
}

/// Returns the longest body that fits into the budget.
fn most_held(settings: &GatewaySettings) -> usize {
    usize::try_from(settings.max_buffered).unwrap_or(usize::MAX)
}

/// Returns the verifier of bearer tokens. It verifies tokens only if `jwks` is given.
fn token_verifier(settings: &GatewaySettings) -> Result<TokenVerifier, ExitError> {
    let GatewaySettings { jwks, jwt_issuer, jwt_audience, principal, .. } = settings;
    let Some(path) = jwks else {
        return match jwt_issuer.is_some() || jwt_audience.is_some() {
            true => Err(ExitError::usage(
                "--jwt-issuer and --jwt-audience need verified tokens: give --jwks FILE",
            )),
            false => Ok(TokenVerifier::unverified()),
        };
    };
    // An operator who gives keys expects tokens to be verified.
    if !matches!(principal, PrincipalSource::Claim(_)) {
        return Err(ExitError::usage(format_args!(
            "--jwks verifies tokens, but callers are distinguished by {principal}, so no token would be \
             read; give --principal jwt-claim:NAME"
        )));
    }
    TokenVerifier::from_file(path, jwt_issuer.as_deref(), jwt_audience.as_deref())
}

fn identifying(settings: &GatewaySettings) -> Vec<(HeaderName, Slug)> {
    let keys = settings.key_headers.iter().map(|name| (name.clone(), Slug::KeyInvalid));
    let principal = settings.principal.header().map(|name| (name, Slug::PrincipalUnknown));
    let tenant = (settings.tenant_header.clone(), Slug::TenantUnknown);
    keys.chain([tenant]).chain(principal).collect()
}

impl ActiveRoutes {
    /// Returns the problem of a request whose `Connection` lists an identifying header: the gateway
    /// would remove the header, and the upstream would take the request for that of another caller.
    fn lists_identifying_header(&self, headers: &HeaderMap) -> Option<(Slug, String)> {
        options(headers).find_map(|option| {
            let named =
                |(name, _): &&(HeaderName, Slug)| name.as_str().eq_ignore_ascii_case(option);
            let (name, slug) = self.identifying.iter().find(named)?;
            let detail = format!("Connection lists {name}, which must reach the service");
            Some((*slug, detail))
        })
    }

    /// Returns the address that a request comes from.
    fn caller<B>(&self, request: &Request<B>) -> IpAddr {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        headers::caller(request.headers(), peer, self.trusted)
    }

    fn problem_response(&self, problem: Problem, path: &str) -> Response<Bytes> {
        problem.error_object(self.error_object).into_http_response(&self.problems, path)
    }

    /// Returns the response to a request that is refused before it reaches the layers; `None` if it
    /// is not refused.
    fn refuse<B>(&self, request: &Request<B>) -> Option<Response<ResponseBody>> {
        let (method, path) = (request.method(), request.uri().path());
        if let Some((slug, detail)) = self.lists_identifying_header(request.headers()) {
            let problem = Problem::new(slug, detail);
            return Some(self.problem_response(problem, path).map(ResponseBody::from));
        }
        if let Some(answer) = self.local.preflight(request) {
            return Some(answer.map(ResponseBody::from));
        }
        if let Some(meant) = self.routes.upper_case(method) {
            tracing::debug!(%method, %meant, "refused a method in lower case");
            let words = "write the method in upper case: it is one that has rules here\n";
            return Some(plain(StatusCode::BAD_REQUEST, words));
        }
        let meant = self.routes.evaded(method, path)?;
        tracing::debug!(route = meant.operation, "refused a path that is not in its normal form");
        let words = "write the path in its plain form: it matches a route that has rules here\n";
        Some(plain(StatusCode::BAD_REQUEST, words))
    }

    /// Returns the number of bytes of a request's body that a layer may hold; `None` if the body is
    /// streamed.
    fn holds<B: http_body::Body>(
        &self,
        request: &Request<B>,
        matched: Option<&Arc<Matched>>,
        grpc: bool,
    ) -> Option<usize> {
        let writes = [Method::POST, Method::PATCH].contains(request.method());
        let concerned = matched.is_some() || writes || grpc;
        let keyed = || self.keys.iter().any(|name| request.headers().contains_key(name));
        let most = matched.and_then(|matched| matched.max_request).unwrap_or(MAX_REQUEST);
        let holds = concerned && !request.body().is_end_stream() && keyed();
        holds.then(|| most.saturating_add(PREFIX))
    }
}

/// A request whose body a layer may hold.
struct Buffered {
    held: Arc<Reservation>,
    target: Uri,
    active: Arc<ActiveRoutes>,
    grpc: bool,
}

impl Buffered {
    /// Returns the layer's response, or a 503 if the body is incomplete because the memory budget
    /// was exhausted.
    fn answered(&self, answer: Response<Body<ResponseBody>>) -> Response<Body<ResponseBody>> {
        let unread = [Some(&Slug::BodyIncomplete), Some(&Slug::BodyTimeout)];
        if !self.held.was_refused() || !unread.contains(&answer.extensions().get::<Slug>()) {
            return answer;
        }
        count("refused");
        tracing::warn!(
            "max_buffered or max_buffered_per_peer reached; a request was refused with 503"
        );
        let detail = "too many bytes are being received; nothing was sent, retry with the same key";
        let problem = Problem::new(Slug::Overloaded, detail).retry_after(RETRY_AFTER);
        let mut refused = match self.grpc {
            true => problem.refused(),
            false => self.active.problem_response(problem, self.target.path()),
        };
        if let Some(close) = answer.headers().get(CONNECTION) {
            refused.headers_mut().insert(CONNECTION, close.clone());
        }
        refused.map(|words| Body::unread(ResponseBody::from(words)))
    }
}

fn described(grpc: GrpcLayer<AnyStore>, path: &Path) -> Result<GrpcLayer<AnyStore>, ExitError> {
    let wrong = |why: &dyn std::fmt::Display| {
        ExitError::usage(format_args!("descriptor_set {}: {why}", path.display()))
    };
    let encoded = std::fs::read(path).map_err(|error| wrong(&error))?;
    grpc.descriptor_set(&encoded).map_err(|invalid| wrong(&invalid))
}

/// Returns the operation of the request's route; without a route the layer uses the path as the
/// name.
fn named(request: &Parts) -> Option<String> {
    request.extensions.get::<Arc<Matched>>().map(|matched| matched.operation.clone())
}

impl Service<Request<Incoming>> for GatewayService {
    type Response = Response<Body<ResponseBody>>;
    type Error = Infallible;
    type Future =
        Pin<Box<dyn Future<Output = Result<Response<Body<ResponseBody>>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        let active = self.active.load_full();
        let context = active.local.context(request.headers());
        if let Some(below) = active.local.below_public_path(request.uri()) {
            *request.uri_mut() = below;
        }
        if let Some(mut answer) = active.refuse(&request) {
            active.local.finish(&context, &mut answer);
            return Box::pin(std::future::ready(Ok(answer.map(Body::unread))));
        }
        let (method, path) = (request.method(), request.uri().path());
        let matched = active.routes.matched(method, path).cloned();
        let grpc = active.methods.covers(path);
        let buffered = active.holds(&request, matched.as_ref(), grpc).map(|most| {
            let (peer, target) = (active.caller(&request), request.uri().clone());
            let held = Reservation::new(&self.budget, peer);
            (most, Buffered { held, target, active: Arc::clone(&active), grpc })
        });
        let mut request = request.map(|body| match &buffered {
            Some((most, buffered)) => MeteredBody::held(body, Arc::clone(&buffered.held), *most),
            None => MeteredBody::passing(body),
        });
        if let Some((_, buffered)) = &buffered {
            request.extensions_mut().insert(Arc::clone(&buffered.held));
        }
        if let Some(matched) = &matched {
            request.extensions_mut().insert(Arc::clone(matched));
        }
        let answering = match grpc {
            true => active.grpc.clone().call(request),
            false => active.http.clone().call(request),
        };
        Box::pin(async move {
            let mut answer = answering.await?;
            if let Some((_, buffered)) = buffered {
                answer = buffered.answered(answer);
            }
            active.local.finish(&context, &mut answer);
            if let Some(matched) = matched {
                answer.extensions_mut().insert(matched);
            }
            Ok(answer)
        })
    }
}
