//! Bearer tokens: reads one claim of a JSON Web Token, which is verified if keys are configured.
//!
//! `jsonwebtoken` parses and validates tokens; [`signature`] makes it verify signatures with ring.
//! The key determines the algorithm, never the token: a public key verifies only signatures of its
//! own type and curve, and `none` and the symmetric algorithms are refused. A verified claim
//! includes its issuer: the same subject from two issuers is two callers.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};

use crate::exit::ExitError;

mod signature;

/// The tolerated difference between the clocks of this machine and of the issuer, in seconds.
const LEEWAY: u64 = 60;
/// The greatest length of a token that is parsed, in bytes. Servers accept 8 to 16 KiB of headers.
const MAX_TOKEN: usize = 16 << 10;

/// Reads claims from bearer tokens, and verifies the tokens if it has keys.
#[derive(Clone, Debug)]
pub(super) struct TokenVerifier {
    /// The keys that verify tokens; with `None`, claims are read without verification.
    keys: Option<Arc<[VerificationKey]>>,
    /// Whether a token without `exp` has been reported.
    reported_no_expiry: Arc<AtomicBool>,
}

impl TokenVerifier {
    /// Creates a verifier that reads claims without verifying them.
    pub(super) fn unverified() -> Self {
        Self { keys: None, reported_no_expiry: Arc::default() }
    }

    /// Creates a verifier with the keys in this file, a JSON Web Key Set. It requires `iss` and
    /// `aud` if they are given.
    pub(super) fn from_file(
        path: &Path,
        issuer: Option<&str>,
        audience: Option<&str>,
    ) -> Result<Self, ExitError> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            ExitError::usage(format_args!("--jwks: cannot read {shown}: {error}"))
        })?;
        Self::from_json(&text, issuer, audience)
            .map_err(|why| ExitError::usage(format_args!("--jwks {shown}: {why}")))
    }

    fn from_json(text: &str, issuer: Option<&str>, audience: Option<&str>) -> Result<Self, String> {
        signature::install();
        let set: JwkSet = serde_json::from_str(text)
            .map_err(|error| format!("not a JSON Web Key Set: {error}"))?;
        let mut keys = Vec::new();
        for jwk in &set.keys {
            match VerificationKey::new(jwk, issuer, audience) {
                Ok(key) => keys.push(key),
                // Applications share key sets, so a key of another type is not a mistake.
                Err(why) => {
                    tracing::warn!(kid = jwk.common.key_id.as_deref(), why, "ignoring a key");
                }
            }
        }
        match keys.is_empty() {
            true => Err("no key to verify signatures with; supported are RSA, EC (P-256, P-384) \
                         and Ed25519 keys"
                .to_owned()),
            false => Ok(Self { keys: Some(keys.into()), reported_no_expiry: Arc::default() }),
        }
    }

    /// Returns the claim `name` as JSON text, with the issuer if the token has one; `None` if the
    /// token is invalid or has no such claim.
    pub(super) fn claim(&self, token: &str, name: &str) -> Option<String> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let Some(keys) = &self.keys else {
            let claims: Map<String, Value> = insecure_decode_claims(token).ok()?;
            return distinct(claims.get(name)?);
        };
        let claims = verified(keys, token)?;
        let claim = distinct(claims.get(name)?)?;
        self.report_missing_expiry(&claims);
        match claims.get("iss") {
            None => Some(claim),
            Some(issuer @ Value::String(_)) => Some(format!("[{issuer},{claim}]")),
            // The crate accepts a list of issuers, which does not identify one issuer.
            Some(_) => None,
        }
    }

    /// Logs once that a token never expires. The issuer decides whether tokens expire.
    fn report_missing_expiry(&self, claims: &Map<String, Value>) {
        if !claims.contains_key("exp") && !self.reported_no_expiry.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "accepted a token without `exp`: a stolen copy is valid until the keys change"
            );
        }
    }
}

/// Returns the claims of a token that one of the keys verifies.
fn verified(keys: &[VerificationKey], token: &str) -> Option<Map<String, Value>> {
    let header = decode_header(token).ok()?;
    // The crate parses `crit` and does not act on it. RFC 7515 requires a token with an extension
    // that is not supported to be rejected, and none is supported here.
    if header.crit.is_some() {
        return None;
    }
    let may_verify = |key: &&VerificationKey| match (&key.id, &header.kid) {
        (Some(ours), Some(theirs)) => ours == theirs,
        (None, _) | (_, None) => true,
    };
    let decoded = |key: &VerificationKey| decode(token, &key.key, &key.validation).ok();
    keys.iter().filter(may_verify).find_map(decoded).map(|token| token.claims)
}

/// Returns a claim as JSON text, so that `7` and `"7"` differ; `None` if the claim cannot identify
/// a caller.
fn distinct(claim: &Value) -> Option<String> {
    let identifies = match claim {
        Value::String(text) => !text.is_empty(),
        // Other numbers are rounded, so that two callers could become one.
        Value::Number(number) => number.is_u64() || number.is_i64(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    identifies.then(|| claim.to_string())
}

/// A public key, and the rules for the tokens that it verifies.
struct VerificationKey {
    id: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

impl VerificationKey {
    fn new(jwk: &Jwk, issuer: Option<&str>, audience: Option<&str>) -> Result<Self, &'static str> {
        let usage = jwk.common.public_key_use.as_ref();
        if usage.is_some_and(|usage| *usage != jsonwebtoken::jwk::PublicKeyUse::Signature) {
            return Err("its `use` is not `sig`");
        }
        let key = DecodingKey::from_jwk(jwk).map_err(|_| "unsupported or malformed key")?;
        let algorithms = algorithms(jwk, &key)?;
        let mut validation = Validation::new(algorithms[0]);
        validation.algorithms = algorithms;
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.validate_aud = audience.is_some();
        // By default the crate requires `exp`, and accepts tokens without the configured `iss` or
        // `aud`. This verifier accepts tokens without `exp`, and requires the configured claims.
        validation.required_spec_claims = HashSet::new();
        if let Some(issuer) = issuer {
            validation.set_issuer(&[issuer]);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        if let Some(audience) = audience {
            validation.set_audience(&[audience]);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        Ok(Self { id: jwk.common.key_id.clone(), key, validation })
    }
}

/// Returns the algorithms that a key may verify: those of its type and curve, or only its own
/// `alg`.
///
/// The crate knows only the family of a key; without this check, a point of the wrong length would
/// only be detected with the first token.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the crate may add key types: none is taken unseen"
)]
fn algorithms(jwk: &Jwk, key: &DecodingKey) -> Result<Vec<Algorithm>, &'static str> {
    let size = key.try_get_as_bytes().map_or(0, <[u8]>::len);
    let fitting: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms(),
        AlgorithmParameters::EllipticCurve(ec) => match (&ec.curve, size) {
            (EllipticCurve::P256, 65) => &[Algorithm::ES256],
            (EllipticCurve::P384, 97) => &[Algorithm::ES384],
            _ => return Err("unsupported curve, or a point of the wrong length"),
        },
        AlgorithmParameters::OctetKeyPair(pair) => match (&pair.curve, size) {
            (EllipticCurve::Ed25519, 32) => &[Algorithm::EdDSA],
            _ => return Err("unsupported curve, or a point of the wrong length"),
        },
        AlgorithmParameters::OctetKey(_) => return Err("a secret in a set of public keys"),
        _ => return Err("unsupported key type"),
    };
    let named = jwk.common.key_algorithm;
    let allowed = |alg: &&Algorithm| named.is_none_or(|named| named == KeyAlgorithm::from(**alg));
    let algorithms: Vec<_> = fitting.iter().filter(allowed).copied().collect();
    match algorithms.is_empty() {
        true => Err("its `alg` does not fit its type"),
        false => Ok(algorithms),
    }
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerificationKey({})", self.id.as_deref().unwrap_or("unnamed"))
    }
}

#[cfg(test)]
mod tests;
