//! Tests of callers, tenants and tokens, which separate keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::fixture::Fixture;
use crate::raw::Raw;
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_principal_passes_only_without_a_key() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let nobody = Caller::new(&gateway).by("");
    let refused = nobody.post("/orders", "k", "{}").await;
    assert_eq!(refused.problem(), (401, "principal-unknown".to_owned()));
    assert_eq!(refused.headers["www-authenticate"], "Bearer", "a 401 has a challenge");
    assert_eq!(shop.seen("/orders").len(), 0);
    assert_eq!(
        nobody.get("/orders").await.status,
        201,
        "a request without a key needs no principal"
    );

    let ann = Caller::new(&gateway);
    let bob = ann.clone().by("Bearer bob");
    assert!(!ann.post("/orders", "k", "{}").await.replayed());
    assert!(!bob.post("/orders", "k", "{}").await.replayed(), "the key belongs to another caller");
    assert!(bob.post("/orders", "k", "{}").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_separate_and_a_missing_header_is_the_default_tenant() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--tenant-header", "x-shop"]);
    let caller = Caller::new(&gateway);
    let of = async |tenant: Option<&str>| {
        let mut request = caller.keyed("/orders", "k", "{}");
        if let Some(tenant) = tenant {
            request.headers_mut().insert("x-shop", tenant.parse().unwrap());
        }
        caller.send(request).await
    };
    for tenant in [None, Some("a"), Some("b")] {
        assert!(!of(tenant).await.replayed(), "{tenant:?}");
        assert!(of(tenant).await.replayed(), "{tenant:?}");
    }
    assert!(of(Some("default")).await.replayed(), "absent is the tenant named default");
    let mut twice = caller.keyed("/orders", "k", "{}");
    twice.headers_mut().append("x-shop", "a".parse().unwrap());
    twice.headers_mut().append("x-shop", "b".parse().unwrap());
    let refused = caller.send(twice).await;
    assert_eq!(refused.problem(), (401, "tenant-unknown".to_owned()));
    assert_eq!(refused.headers["www-authenticate"], "Semel header=\"x-shop\"");
    assert_eq!(of(Some(&"x".repeat(65))).await.problem().1, "tenant-unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_may_be_distinguished_by_a_cookie_or_not_at_all() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--principal", "cookie:sid"]);
    let caller = Caller::new(&gateway).by("");
    let with = |cookie: &str| {
        let mut request = caller.keyed("/orders", "k", "{}");
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        request
    };
    assert!(!caller.send(with("a=1; sid=ann")).await.replayed());
    assert!(caller.send(with("sid=ann; b=2")).await.replayed());
    assert!(!caller.send(with("sid=bob")).await.replayed());
    let refused = caller.send(with("xsid=ann")).await;
    assert_eq!(refused.problem().0, 401);
    assert_eq!(refused.headers["www-authenticate"], "Semel cookie=\"sid\"");

    let other = Fixture::new();
    let gateway = other.gateway(&shop.url(), &["--principal", "global"]);
    let nobody = Caller::new(&gateway).by("");
    assert!(!nobody.post("/orders", "k", "{}").await.replayed());
    assert!(nobody.by("Bearer ann").post("/orders", "k", "{}").await.replayed());
    assert!(other.log().contains("callers are not distinguished"), "{}", other.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_the_same_before_and_behind_the_gateway() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--principal", "header:x-user"]);
    let head = "host: a\r\nx-user: ann\r\nx-tenant-id: acme\r\nidempotency-key: k\r\n\
                content-length: 0\r\n";
    for (named, status, slug) in [
        ("x-user", 401, "principal-unknown"),
        ("close, X-Tenant-Id", 401, "tenant-unknown"),
        ("idempotency-key", 400, "key-invalid"),
        ("keep-alive\r\nconnection: X-Idempotency-Key", 400, "key-invalid"),
    ] {
        for method in ["POST", "GET"] {
            let mut raw = Raw::connect(&gateway).await;
            let request_text =
                format!("{method} /orders HTTP/1.1\r\n{head}connection: {named}\r\n\r\n");
            raw.send(&request_text).await;
            let answer = raw.read_until("}").await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{named}: {answer}");
            assert!(
                answer.contains(slug) && answer.contains("Connection lists"),
                "{named}: {answer}"
            );
        }
    }
    assert_eq!(shop.seen("/orders").len(), 0);
    let mut raw = Raw::connect(&gateway).await;
    raw.send(&format!("POST /orders HTTP/1.1\r\n{head}connection: x-other\r\n\r\n")).await;
    assert!(raw.read_until("\"order\":1}").await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_of_a_cookie_or_token_cannot_be_removed() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    for (principal, named) in [("cookie:sid", "cookie"), ("jwt-claim:sub", "authorization")] {
        let gateway = fixture.gateway(&shop.url(), &["--principal", principal]);
        let mut raw = Raw::connect(&gateway).await;
        raw.send(&format!("GET /a HTTP/1.1\r\nhost: a\r\nconnection: {named}\r\n\r\n")).await;
        assert!(raw.read_until("}").await.contains("principal-unknown"), "{principal}");
    }
    assert_eq!(shop.seen("/a").len(), 0);
}

struct Signer(Ed25519KeyPair);

impl Signer {
    fn new() -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())
    }

    fn keys(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": x}]}).to_string()
    }

    fn token(&self, alg: &str, claims: &Value) -> &'static str {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": alg, "kid": "1"})), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
        format!("Bearer {signed}.{signature}").leak()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_token_is_the_same_caller_and_a_forged_one_is_refused() {
    let (fixture, shop, signer) = (Fixture::new(), Shop::open().await, Signer::new());
    fixture.write("keys.json", signer.keys());
    let flags = ["--principal", "jwt-claim:sub", "--jwks", "keys.json"];
    let gateway = fixture.gateway(&shop.url(), &flags);
    assert!(!fixture.log().contains("unverified"), "{}", fixture.log());
    let caller = Caller::new(&gateway);
    let with = async |token| caller.clone().by(token).post("/orders", "k", "{}").await;
    let far = 4_000_000_000_u64;
    assert!(!with(signer.token("EdDSA", &json!({"sub": "ann", "exp": far}))).await.replayed());
    let renewed = signer.token("EdDSA", &json!({"sub": "ann", "exp": far + 1}));
    assert!(with(renewed).await.replayed());
    assert!(!with(signer.token("EdDSA", &json!({"sub": "bob", "exp": far}))).await.replayed());
    for nobody in [
        signer.token("EdDSA", &json!({"sub": "ann", "exp": 1})),
        signer.token("EdDSA", &json!({"name": "ann", "exp": far})),
        signer.token("none", &json!({"sub": "ann"})),
        signer.token("HS256", &json!({"sub": "ann"})),
        Signer::new().token("EdDSA", &json!({"sub": "ann", "exp": far})),
        "Bearer ann",
        "Basic ann",
    ] {
        assert_eq!(with(nobody).await.problem(), (401, "principal-unknown".to_owned()), "{nobody}");
    }
    assert_eq!(shop.seen("/orders").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_from_two_issuers_is_two_callers() {
    let (fixture, shop, signer) = (Fixture::new(), Shop::open().await, Signer::new());
    fixture.write("keys.json", signer.keys());
    let flags = ["--principal", "jwt-claim:sub", "--jwks", "keys.json", "--jwt-audience", "shop"];
    let gateway = fixture.gateway(&shop.url(), &flags);
    let caller = Caller::new(&gateway);
    let with = async |issuer: &str, audience: &str| {
        let claims =
            json!({"sub": "ann", "iss": issuer, "aud": audience, "exp": 4_000_000_000_u64});
        caller.clone().by(signer.token("EdDSA", &claims)).post("/orders", "k", "{}").await
    };
    assert!(!with("https://one", "shop").await.replayed());
    assert!(!with("https://two", "shop").await.replayed());
    assert!(with("https://two", "shop").await.replayed());
    assert_eq!(with("https://two", "bank").await.problem(), (401, "principal-unknown".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_keys_a_claim_is_accepted_with_a_warning() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--principal", "jwt-claim:sub"]);
    let (ann, eve) = (Signer::new(), Signer::new());
    let caller = Caller::new(&gateway);
    let with = async |token| caller.clone().by(token).post("/orders", "k", "{}").await;
    assert!(!with(ann.token("EdDSA", &json!({"sub": "ann"}))).await.replayed());
    assert!(with(eve.token("none", &json!({"sub": "ann"}))).await.replayed());
    assert!(fixture.log().contains("is not verified"), "{}", fixture.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_keys_are_read_again_on_sighup() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let (old, new) = (Signer::new(), Signer::new());
    fixture.write("keys.json", old.keys());
    let flags = ["--principal", "jwt-claim:sub", "--jwks", "keys.json"];
    let gateway = fixture.gateway(&shop.url(), &flags);
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64});
    let caller = Caller::new(&gateway).by(new.token("EdDSA", &claims));
    assert_eq!(caller.post("/orders", "k", "{}").await.problem().0, 401);
    fixture.write("keys.json", new.keys());
    gateway.signal("HUP");
    fixture.logged("settings reloaded", 1).await;
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
}
