//! Whose key it is: nobody gets an answer that was made for another.

use http::HeaderName;
use semel_core::Store;
use semel_tower::grpc::{GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant};
use tonic::metadata::AsciiMetadataKey;
use tonic::{Code, Request};

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Charge, paid};
use crate::desk::{Desk, keyed, refusal, refused, told, unkeyed};

fn by_metadata<S: Store>(executor: semel_core::Executor<S>, rules: GrpcRules) -> GrpcLayer<S> {
    let tenant = Tenant::header(HeaderName::from_static("x-tenant"));
    let principal = PrincipalFrom::header(http::header::AUTHORIZATION);
    GrpcLayer::fenced(executor, tenant, principal).unary(CHARGE, rules)
}

fn with(mut request: Request<Charge>, pairs: &[(&'static str, &'static str)]) -> Request<Charge> {
    for (name, value) in pairs {
        let name = AsciiMetadataKey::from_static(name);
        request.metadata_mut().append(name, value.parse().expect("ASCII"));
    }
    request
}

async fn tenants_and_callers_never_meet_under_one_key<G: Backend>(backend: G) {
    let desk =
        Desk::with(by_metadata(backend.executor().await, GrpcRules::new()), Bank::new(paid)).await;
    let mut runs = 0;
    for tenant in ["acme", "Acme", "globex"] {
        for caller in ["Bearer ann", "Bearer bob"] {
            runs += 1;
            for replayed in [false, true] {
                let whose = [("x-tenant", tenant), ("authorization", caller)];
                // Not even to say that it was used for something else.
                let request = with(keyed("k", i64::from(runs)), &whose);
                let answer = desk.charge(request).await.expect("paid");
                assert_eq!(told(&answer), (runs, replayed), "{tenant} {caller}");
            }
        }
    }
}

async fn who_cannot_be_told_is_refused_and_nothing_runs<G: Backend>(backend: G) {
    let desk =
        Desk::with(by_metadata(backend.executor().await, GrpcRules::new()), Bank::new(paid)).await;
    let (acme, ann) = (("x-tenant", "acme"), ("authorization", "Bearer ann"));
    let refusals: [(&[_], _); 5] = [
        (&[], "TENANT_UNKNOWN"),
        (&[ann], "TENANT_UNKNOWN"),
        (&[ann, ("x-tenant", "")], "TENANT_UNKNOWN"),
        (&[ann, acme, acme], "TENANT_UNKNOWN"),
        (&[acme], "PRINCIPAL_UNKNOWN"),
    ];
    for (pairs, reason) in refusals {
        let answer = desk.charge(with(keyed("k", 100), pairs)).await;
        assert_eq!(refused(answer), refusal(Code::Unauthenticated, reason), "{pairs:?}");
    }
    assert_eq!(desk.runs.count(), 0);
    // Nobody is asked who they are without need.
    desk.charge(unkeyed(100)).await.expect("paid");
}

async fn a_tenant_that_cannot_be_one_is_refused<G: Backend>(backend: G) {
    let layer = GrpcLayer::fenced(
        backend.executor().await,
        Tenant::by(|_| Some("t".repeat(65))),
        PrincipalFrom::global(),
    );
    let desk = Desk::with(layer.unary(CHARGE, GrpcRules::new()), Bank::new(paid)).await;
    let answer = desk.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::Unauthenticated, "TENANT_UNKNOWN"));
}

async fn a_replay_check_is_asked_for_repeats_only<G: Backend>(backend: G) {
    let rules = GrpcRules::new().replay_check(|call| {
        let allowed = call.headers.contains_key("x-allowed");
        async move { allowed }
    });
    let desk = Desk::open(&backend, rules, Bank::new(paid)).await;
    desk.charge(keyed("k", 100)).await.expect("paid");
    let answer = desk.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::PermissionDenied, "REPLAY_REFUSED"));
    let again = desk.charge(with(keyed("k", 100), &[("x-allowed", "yes")])).await;
    assert_eq!(told(&again.expect("paid before")), (1, true));
}

on_every_store! {
    tenants_and_callers_never_meet_under_one_key,
}

in_memory! {
    who_cannot_be_told_is_refused_and_nothing_runs,
    a_tenant_that_cannot_be_one_is_refused,
    a_replay_check_is_asked_for_repeats_only,
}
