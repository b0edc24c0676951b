//! Bearer tokens: a claim of a JSON Web Token, verified where there are keys to verify it with.
//!
//! The key decides the algorithm, never the token: a public key of one kind verifies signatures of its
//! own kind, and `none` and the symmetric algorithms verify nothing. A verified claim is its issuer's:
//! the same name from two issuers is two callers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// How far apart clocks may be, in seconds.
const LEEWAY: i64 = 60;
/// No token that is worth reading is longer: headers are not.
const MAX_TOKEN: usize = 16 << 10;

/// Whose tokens are believed.
#[derive(Clone, Debug)]
pub(super) struct Issuer {
    /// `None` believes everybody.
    keys: Option<Arc<[PublicKey]>>,
    /// What a token must say, if anything: who issued it, and for whom.
    issuer: Option<Arc<str>>,
    audience: Option<Arc<str>>,
    /// Whether it was said that some tokens never end.
    said: Arc<AtomicBool>,
}

impl Issuer {
    /// Anybody: claims are read as they come.
    pub(super) fn anybody() -> Self {
        Self::with(None)
    }

    fn with(keys: Option<Arc<[PublicKey]>>) -> Self {
        Self { keys, issuer: None, audience: None, said: Arc::default() }
    }

    /// Only tokens of this issuer, and for this audience.
    pub(super) fn only(mut self, issuer: Option<&str>, audience: Option<&str>) -> Self {
        self.issuer = issuer.map(Arc::from);
        self.audience = audience.map(Arc::from);
        self
    }

    /// Whoever signs with one of the keys in this file, a JSON Web Key Set.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format_args!("--jwks: cannot read {shown}: {error}"))
        })?;
        Self::of(&text).map_err(|why| Failure::usage(format_args!("--jwks {shown}: {why}")))
    }

    fn of(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct KeySet {
            keys: Vec<WebKey>,
        }
        let set: KeySet = serde_json::from_str(text)
            .map_err(|error| format!("not a JSON Web Key Set: {error}"))?;
        let mut keys = Vec::new();
        for key in set.keys {
            match key.public() {
                Ok(key) => keys.push(key),
                // Sets are shared with other readers: what is not for us is no mistake.
                Err(why) => tracing::warn!(kid = key.kid.as_deref(), why, "a key is not used"),
            }
        }
        match keys.is_empty() {
            true => {
                Err("no key to verify signatures with; RSA, EC (P-256, P-384) and Ed25519 keys \
                         are known"
                    .to_owned())
            }
            false => Ok(Self::with(Some(keys.into()))),
        }
    }

    /// What the token claims under `name`; `None` if it claims nothing, or is not to be believed.
    pub(super) fn claim(&self, token: &str, name: &str) -> Option<String> {
        self.claim_at(token, name, jiff::Timestamp::now().as_second())
    }

    fn claim_at(&self, token: &str, name: &str, now: i64) -> Option<String> {
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if let Some(keys) = &self.keys {
            let header: Header = serde_json::from_slice(&bytes(header)?).ok()?;
            // It must be understood, and nothing is.
            if header.crit.is_some() {
                return None;
            }
            let signature = bytes(signature)?;
            let signer = |key: &PublicKey| key.verifies(&header, signed.as_bytes(), &signature);
            keys.iter().find(|key| signer(key))?;
        }
        let claims: Map<String, Value> = serde_json::from_slice(&bytes(payload)?).ok()?;
        let claim = readable(claims.get(name)?)?;
        if self.keys.is_none() {
            return Some(claim);
        }
        if !is_current(&claims, now) || !self.is_meant(&claims) {
            return None;
        }
        self.mind_the_end(&claims);
        match claims.get("iss") {
            None => Some(claim),
            Some(issuer @ Value::String(_)) => Some(format!("[{issuer},{claim}]")),
            Some(_) => None,
        }
    }

    /// Whether a token is of the issuer and for the audience that were asked for.
    fn is_meant(&self, claims: &Map<String, Value>) -> bool {
        let says = |name: &str, wanted: &Option<Arc<str>>| {
            let Some(wanted) = wanted else { return true };
            match claims.get(name) {
                Some(Value::Array(all)) => all.iter().any(|one| one.as_str() == Some(wanted)),
                one => one.and_then(Value::as_str) == Some(wanted),
            }
        };
        says("iss", &self.issuer) && says("aud", &self.audience)
    }

    /// Says once that some tokens never end. They are their issuer's to give, and believed.
    fn mind_the_end(&self, claims: &Map<String, Value>) {
        if !claims.contains_key("exp") && !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a token has no `exp` and is believed for as long as its key is: whoever gets hold \
                 of it is that caller until the keys change"
            );
        }
    }
}

/// What a claim says, if it tells callers apart. As JSON, so that 7 and "7" are two.
fn readable(claim: &Value) -> Option<String> {
    let tells = match claim {
        Value::String(text) => !text.is_empty(),
        // Others are rounded, and two callers could be one.
        Value::Number(number) => number.is_u64() || number.is_i64(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    tells.then(|| claim.to_string())
}

/// Whether it is neither too early nor too late for this token. A time that cannot be read is wrong.
fn is_current(claims: &Map<String, Value>, now: i64) -> bool {
    let time = |name: &str| claims.get(name).map(|value| value.as_f64().unwrap_or(f64::NAN));
    #[expect(clippy::cast_precision_loss, reason = "seconds of this age are exact")]
    let (earliest, latest) = ((now - LEEWAY) as f64, (now + LEEWAY) as f64);
    time("exp").is_none_or(|end| end > earliest) && time("nbf").is_none_or(|start| start <= latest)
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The head of a token.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// A key as a set has it.
#[derive(Deserialize)]
struct WebKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// A key that signatures are verified with.
struct PublicKey {
    kid: Option<String>,
    /// The one algorithm that it was made for, where its set says so.
    alg: Option<String>,
    material: Material,
}

enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl WebKey {
    fn public(&self) -> Result<PublicKey, &'static str> {
        if self.r#use.as_deref().is_some_and(|what| what != "sig") {
            return Err("it is not for signatures");
        }
        let part = |part: &Option<String>| {
            part.as_deref().and_then(bytes).ok_or("a part is missing or not base64url")
        };
        let point = |size: usize| {
            let (x, y) = (part(&self.x)?, part(&self.y)?);
            match (x.len(), y.len()) == (size, size) {
                true => Ok([&[4], &x[..], &y[..]].concat()),
                false => Err("its point has the wrong length"),
            }
        };
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let n = part(&self.n)?.into_iter().skip_while(|byte| *byte == 0).collect();
                Material::Rsa { n, e: part(&self.e)? }
            }
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(part(&self.x)?),
            ("oct", _) => return Err("a secret does not belong into a set of public keys"),
            _ => return Err("its kind is not known here"),
        };
        Ok(PublicKey { kid: self.kid.clone(), alg: self.alg.clone(), material })
    }
}

impl PublicKey {
    fn verifies(&self, header: &Header, signed: &[u8], signature: &[u8]) -> bool {
        let named = match (&self.kid, &header.kid) {
            (Some(ours), Some(theirs)) => ours == theirs,
            (None, _) | (_, None) => true,
        };
        if !named || self.alg.as_ref().is_some_and(|alg| *alg != header.alg) {
            return false;
        }
        let curve = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
        };
        match (&self.material, header.alg.as_str()) {
            (Material::Rsa { n, e }, alg) => rsa(alg).is_some_and(|parameters| {
                RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
            }),
            (Material::P256(point), "ES256") => curve(&ECDSA_P256_SHA256_FIXED, point),
            (Material::P384(point), "ES384") => curve(&ECDSA_P384_SHA384_FIXED, point),
            (Material::Ed25519(key), "EdDSA" | "Ed25519") => curve(&ED25519, key),
            (Material::P256(_) | Material::P384(_) | Material::Ed25519(_), _) => false,
        }
    }
}

fn rsa(alg: &str) -> Option<&'static RsaParameters> {
    Some(match alg {
        "RS256" => &RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &RSA_PSS_2048_8192_SHA256,
        "PS384" => &RSA_PSS_2048_8192_SHA384,
        "PS512" => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.kid.as_deref().unwrap_or("unnamed"))
    }
}

#[cfg(test)]
mod tests;
