//! Tests which tokens are accepted, and which hostile or malformed ones are refused.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::get_current_timestamp;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::json;

use super::*;

/// Returns a time relative to the system clock, with which the crate validates tokens. The offsets
/// in the tests keep a few seconds of distance from each limit, for slow machines.
fn seconds_from_now(offset: i64) -> u64 {
    get_current_timestamp().checked_add_signed(offset).unwrap()
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

struct Signer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
}

impl Signer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self {
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
            ec: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random)
                .unwrap(),
        }
    }

    fn verifier(&self) -> TokenVerifier {
        self.requiring(None, None)
    }

    fn requiring(&self, issuer: Option<&str>, audience: Option<&str>) -> TokenVerifier {
        let point = self.ec.public_key().as_ref();
        let (x, y) = (text(&point[1..33]), text(&point[33..]));
        let ed = text(self.ed.public_key().as_ref());
        let set = json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": ed},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "x": x, "y": y, "alg": "ES256"},
            {"kty": "oct", "kid": "secret", "k": "AAAA"},
        ]});
        TokenVerifier::from_json(&set.to_string(), issuer, audience).unwrap()
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", text(header.to_string()), text(claims.to_string()));
        let signature = match header["alg"].as_str() {
            Some("ES256") => {
                self.ec.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec()
            }
            Some("none") => Vec::new(),
            _ => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", text(signature))
    }
}

#[test]
fn a_claim_of_a_signed_token_is_accepted() {
    let signer = Signer::new();
    let verifier = signer.verifier();
    for (alg, kid) in [("EdDSA", "ed"), ("ES256", "ec")] {
        let claims =
            json!({"sub": "ann", "exp": seconds_from_now(10), "nbf": seconds_from_now(-10)});
        let token = signer.token(&json!({"alg": alg, "kid": kid}), &claims);
        assert_eq!(verifier.claim(&token, "sub").as_deref(), Some("\"ann\""), "{alg}");
        let unnamed = signer.token(&json!({"alg": alg}), &claims);
        assert!(verifier.claim(&unnamed, "sub").is_some(), "{alg}");
    }
}

#[test]
fn a_token_that_no_key_verifies_is_refused() {
    let signer = Signer::new();
    let (verifier, claims) = (signer.verifier(), json!({"sub": "ann"}));
    let token = |header: Value| signer.token(&header, &claims);
    for (what, token) in [
        ("none", token(json!({"alg": "none"}))),
        ("symmetric", token(json!({"alg": "HS256", "kid": "ed"}))),
        ("the algorithm of another key", token(json!({"alg": "EdDSA", "kid": "ec"}))),
        ("an unknown key", token(json!({"alg": "EdDSA", "kid": "other"}))),
        ("an extension", token(json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"]}))),
        (
            "a key of another signer",
            Signer::new().token(&json!({"alg": "EdDSA", "kid": "ed"}), &claims),
        ),
        ("no signature", token(json!({"alg": "EdDSA"})).rsplit_once('.').unwrap().0.to_owned()),
        ("nothing", String::new()),
    ] {
        assert_eq!(verifier.claim(&token, "sub"), None, "{what}");
    }
    let good = token(json!({"alg": "EdDSA", "kid": "ed"}));
    let (head, rest) = good.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let forged = format!("{head}.{}.{signature}", text(json!({"sub": "bob"}).to_string()));
    assert!(verifier.claim(&good, "sub").is_some());
    assert_eq!(verifier.claim(&forged, "sub"), None);
}

#[test]
fn a_malformed_token_is_refused() {
    let signer = Signer::new();
    let verifier = signer.verifier();
    let signed = |header: &str, claims: &str| {
        let signed = format!("{}.{}", text(header), text(claims));
        let signature = text(signer.ed.sign(signed.as_bytes()).as_ref());
        format!("{signed}.{signature}")
    };
    let (header, claims) = (r#"{"alg":"EdDSA"}"#, r#"{"sub":"ann"}"#);
    let good = signed(header, claims);
    assert!(verifier.claim(&good, "sub").is_some());
    let long = format!(r#"{{"sub":"ann","pad":"{}"}}"#, "x".repeat(MAX_TOKEN));
    for (what, token) in [
        ("padding", format!("{good}=")),
        ("a part too many", format!("{good}.")),
        ("base64 of the other alphabet", good.replacen('.', "+.", 1)),
        ("two algorithms", signed(r#"{"alg":"none","alg":"EdDSA"}"#, claims)),
        ("no algorithm", signed("{}", claims)),
        ("an extension list that is empty", signed(r#"{"alg":"EdDSA","crit":[]}"#, claims)),
        ("a header that is not JSON", signed("EdDSA", claims)),
        ("claims that are not an object", signed(header, r#"["sub","ann"]"#)),
        ("the subject twice", signed(header, r#"{"sub":"ann","sub":"bob"}"#)),
        ("the issuer twice", signed(header, r#"{"sub":"ann","iss":"a","iss":"b"}"#)),
        ("a list of issuers", signed(header, r#"{"sub":"ann","iss":["a","b"]}"#)),
        ("an end that is null", signed(header, r#"{"sub":"ann","exp":null}"#)),
        ("an end before 1970", signed(header, r#"{"sub":"ann","exp":-1}"#)),
        ("a start that cannot be read", signed(header, r#"{"sub":"ann","nbf":"now"}"#)),
        ("a token that is too long", signed(header, &long)),
    ] {
        assert_eq!(verifier.claim(&token, "sub"), None, "{what}");
    }
}

#[test]
fn a_token_is_valid_between_nbf_and_exp() {
    let signer = Signer::new();
    let verifier = signer.verifier();
    let read = |claims: Value| {
        let token = signer.token(&json!({"alg": "EdDSA"}), &claims);
        verifier.claim(&token, "sub").is_some()
    };
    assert!(read(json!({"sub": "ann", "exp": seconds_from_now(-30)})), "clocks may differ");
    assert!(!read(json!({"sub": "ann", "exp": seconds_from_now(-61)})));
    assert!(!read(json!({"sub": "ann", "nbf": seconds_from_now(90)})));
    assert!(!read(json!({"sub": "ann", "exp": "tomorrow"})));
}

#[test]
fn the_same_name_from_two_issuers_is_two_callers() {
    let signer = Signer::new();
    let verifier = signer.verifier();
    let read =
        |claims: Value| verifier.claim(&signer.token(&json!({"alg": "EdDSA"}), &claims), "sub");
    let (one, two) = (
        read(json!({"sub": "ann", "iss": "https://one"})).unwrap(),
        read(json!({"sub": "ann", "iss": "https://two"})).unwrap(),
    );
    assert_ne!(one, two);
    assert_ne!(Some(one), read(json!({"sub": "ann"})));
    assert_eq!(read(json!({"sub": "ann", "iss": 7})), None, "an issuer that cannot be read");
}

#[test]
fn only_tokens_of_the_issuer_and_for_the_audience_are_accepted() {
    let signer = Signer::new();
    let verifier = signer.requiring(Some("https://one"), Some("shop"));
    let read = |claims: Value| {
        verifier.claim(&signer.token(&json!({"alg": "EdDSA"}), &claims), "sub").is_some()
    };
    assert!(read(json!({"sub": "ann", "iss": "https://one", "aud": "shop"})));
    assert!(read(json!({"sub": "ann", "iss": "https://one", "aud": ["bank", "shop"]})));
    for claims in [
        json!({"sub": "ann", "iss": "https://two", "aud": "shop"}),
        json!({"sub": "ann", "iss": "https://one", "aud": "bank"}),
        json!({"sub": "ann", "iss": "https://one", "aud": ["bank"]}),
        json!({"sub": "ann", "iss": "https://one"}),
        json!({"sub": "ann", "aud": "shop"}),
    ] {
        assert!(!read(claims.clone()), "{claims}");
    }
}

#[test]
fn a_token_without_exp_is_accepted_and_reported_once() {
    let signer = Signer::new();
    let verifier = signer.verifier();
    let read = |claims: Value| {
        verifier.claim(&signer.token(&json!({"alg": "EdDSA"}), &claims), "sub").is_some()
    };
    assert!(read(json!({"sub": "ann", "exp": seconds_from_now(10)})));
    assert!(!verifier.reported_no_expiry.load(Ordering::Relaxed));
    assert!(read(json!({"sub": "ann"})));
    assert!(verifier.reported_no_expiry.load(Ordering::Relaxed));
}

#[test]
fn without_keys_a_claim_is_read_unverified() {
    let signer = Signer::new();
    let token = |claims: Value| signer.token(&json!({"alg": "none"}), &claims);
    let read = |claims: Value| TokenVerifier::unverified().claim(&token(claims), "sub");
    assert_eq!(read(json!({"sub": "ann"})).as_deref(), Some("\"ann\""));
    assert_eq!(read(json!({"sub": 7})).as_deref(), Some("7"));
    assert_eq!(read(json!({"sub": "ann", "iss": "anybody"})).as_deref(), Some("\"ann\""));
    for nothing in [json!({"sub": ""}), json!({"sub": null}), json!({"sub": ["a"]}), json!({})] {
        assert_eq!(read(nothing.clone()), None, "{nothing}");
    }
}

#[test]
fn a_set_without_a_usable_key_is_refused() {
    for (set, named) in [
        ("{}", "keys"),
        ("{\"keys\": []}", "no key"),
        ("{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}", "no key"),
        (
            "{\"keys\": [{\"kty\": \"EC\", \"crv\": \"P-256\", \"x\": \"AA\", \"y\": \"AA\"}]}",
            "no key",
        ),
    ] {
        let refused = TokenVerifier::from_json(set, None, None).unwrap_err();
        assert!(refused.contains(named), "{set}: {refused}");
    }
}

/// Verifies the example of RFC 7515, appendix A.2.
#[test]
fn the_example_of_the_rfc_is_verified() {
    let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt\
             0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSX\
             ndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5\
             IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    let token = "eyJhbGciOiJSUzI1NiJ9.\
                 eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290\
                 Ijp0cnVlfQ.\
                 cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt\
                 _O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArL\
                 IARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7no\
                 OPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQ\
                 Ge77Rw";
    let set = json!({"keys": [{"kty": "RSA", "n": n, "e": "AQAB"}]});
    let verifier = TokenVerifier::from_json(&set.to_string(), None, None).unwrap();
    assert_eq!(verifier.claim(token, "iss"), None, "the token expired in 2011");

    let jwk = serde_json::from_value(set["keys"][0].clone()).unwrap();
    let mut key = VerificationKey::new(&jwk, None, None).unwrap();
    key.validation.validate_exp = false;
    assert_eq!(verified(&[key], token).unwrap()["iss"], "joe");
}
