//! Signatures of requests by Standard Webhooks (standardwebhooks.com): HMAC-SHA256 over id, time and body.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

use crate::exit::ExitError;
use crate::settings::{SigningSecret, SubscriptionSettings};

/// The largest number of secrets of a subscription: each is one signature in a header.
const MOST: usize = 8;

/// Signs the requests of one subscription with each of its secrets, so that the endpoint can change from one to
/// another.
#[derive(Debug)]
pub(super) struct Signer(Vec<SigningSecret>);

impl Signer {
    /// Collects the secrets of a subscription from the settings, from files and from the environment.
    pub(super) fn new(settings: &SubscriptionSettings) -> Result<Self, ExitError> {
        let group = &settings.group;
        let wrong = |place: &dyn fmt::Display, why: &dyn fmt::Display| {
            ExitError::usage(format_args!("{place} of [[subscription]] {group:?} {why}"))
        };
        let mut secrets = settings.secret.clone();
        for file in &settings.secret_file {
            let place = format!("secret_file {}", file.display());
            let text = std::fs::read_to_string(file)
                .map_err(|error| wrong(&place, &format_args!("cannot be read: {error}")))?;
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            for line in lines {
                secrets.push(line.parse().map_err(|why| wrong(&place, &why))?);
            }
        }
        for name in &settings.secret_env {
            if name.starts_with("whsec_") {
                let why = "has a secret where the name of a variable belongs";
                return Err(wrong(&"secret_env", &why));
            }
            let place = format!("secret_env {name}");
            let value = std::env::var(name).map_err(|_| wrong(&place, &"is not set"))?;
            for one in value.split_whitespace() {
                secrets.push(one.parse().map_err(|why| wrong(&place, &why))?);
            }
        }
        match secrets.len() {
            0 => Err(wrong(
                &"the secret",
                &"is missing: give secret, secret_file or secret_env, so that the endpoint can verify requests",
            )),
            1..=MOST => Ok(Self(secrets)),
            count => Err(wrong(
                &"the secrets",
                &format_args!("are {count}; at most {MOST} sign a request"),
            )),
        }
    }

    /// Returns the header `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        let signatures = self.0.iter().map(|secret| {
            let mut context = hmac::Context::with_key(secret.key());
            context.update(head.as_bytes());
            context.update(body);
            format!("v1,{}", STANDARD.encode(context.sign()))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_the_specification_is_signed() {
        // The example of the reference libraries.
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().unwrap();
        let signer = Signer(vec![secret]);
        let body = br#"{"test": 2432232314}"#;
        let signed = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
