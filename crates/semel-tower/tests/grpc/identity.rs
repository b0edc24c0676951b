//! Tests that keys are separate for tenants and callers: no caller gets a response that was made
//! for another.

use http::HeaderName;
use semel_core::Store;
use semel_tower::grpc::{GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant};
use tonic::metadata::AsciiMetadataKey;
use tonic::{Code, Request};

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Charge, paid};
use crate::bank_server::{BankServer, keyed, refusal, refused, run_and_replayed, unkeyed};

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

async fn keys_of_tenants_and_callers_are_separate<G: Backend>(backend: G) {
    let server =
        BankServer::with(by_metadata(backend.executor().await, GrpcRules::new()), Bank::new(paid))
            .await;
    let mut runs = 0;
    for tenant in ["acme", "Acme", "globex"] {
        for caller in ["Bearer ann", "Bearer bob"] {
            runs += 1;
            for replayed in [false, true] {
                let whose = [("x-tenant", tenant), ("authorization", caller)];
                // No caller can even find out that another has used the key for something else.
                let request = with(keyed("k", i64::from(runs)), &whose);
                let answer = server.charge(request).await.expect("paid");
                assert_eq!(run_and_replayed(&answer), (runs, replayed), "{tenant} {caller}");
            }
        }
    }
}

async fn an_unknown_caller_is_refused_and_nothing_runs<G: Backend>(backend: G) {
    let server =
        BankServer::with(by_metadata(backend.executor().await, GrpcRules::new()), Bank::new(paid))
            .await;
    let (acme, ann) = (("x-tenant", "acme"), ("authorization", "Bearer ann"));
    let refusals: [(&[_], _); 5] = [
        (&[], "TENANT_UNKNOWN"),
        (&[ann], "TENANT_UNKNOWN"),
        (&[ann, ("x-tenant", "")], "TENANT_UNKNOWN"),
        (&[ann, acme, acme], "TENANT_UNKNOWN"),
        (&[acme], "PRINCIPAL_UNKNOWN"),
    ];
    for (pairs, reason) in refusals {
        let answer = server.charge(with(keyed("k", 100), pairs)).await;
        assert_eq!(refused(answer), refusal(Code::Unauthenticated, reason), "{pairs:?}");
    }
    assert_eq!(server.runs.count(), 0);
    // A call without a key needs no identity.
    server.charge(unkeyed(100)).await.expect("paid");
}

async fn an_invalid_tenant_is_refused<G: Backend>(backend: G) {
    let layer = GrpcLayer::fenced(
        backend.executor().await,
        Tenant::by(|_| Some("t".repeat(65))),
        PrincipalFrom::global(),
    );
    let server = BankServer::with(layer.unary(CHARGE, GrpcRules::new()), Bank::new(paid)).await;
    let answer = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::Unauthenticated, "TENANT_UNKNOWN"));
}

async fn a_replay_check_runs_for_repeats_only<G: Backend>(backend: G) {
    let rules = GrpcRules::new().replay_check(|call| {
        let allowed = call.headers.contains_key("x-allowed");
        async move { allowed }
    });
    let server = BankServer::open(&backend, rules, Bank::new(paid)).await;
    server.charge(keyed("k", 100)).await.expect("paid");
    let answer = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::PermissionDenied, "REPLAY_REFUSED"));
    let again = server.charge(with(keyed("k", 100), &[("x-allowed", "yes")])).await;
    assert_eq!(run_and_replayed(&again.expect("paid before")), (1, true));
}

on_every_store! {
    keys_of_tenants_and_callers_are_separate,
}

in_memory! {
    an_unknown_caller_is_refused_and_nothing_runs,
    an_invalid_tenant_is_refused,
    a_replay_check_runs_for_repeats_only,
}
