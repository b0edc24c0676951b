//! The settings of `[[subscription]]`: where `semel deliver` sends events, and which.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use semel_core::policy::{OnFailure, Policy};
use serde::Deserialize;

use super::endpoint::Endpoint;
use super::gateway::{from_text, several};
use super::secret::SigningSecret;
use super::{InboxSettings, duration};
use crate::exit::ExitError;

/// The longest name of a group, which leaves room for a partition in the scope of a record.
const MAX_GROUP: usize = 80;
/// The largest number of concurrent requests of one subscription.
const MAX_CONCURRENCY: u32 = 1_000;
/// The longest time limit of a request.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The settings of one `[[subscription]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionSettings {
    /// The name of the consumer group.
    pub group: String,
    /// The endpoint that events are sent to.
    #[serde(deserialize_with = "from_text")]
    pub url: Endpoint,
    /// The types of the events that are sent.
    #[serde(default = "every_type", deserialize_with = "patterns")]
    pub types: Vec<TypePattern>,
    /// The tenant whose events are sent; with `None`, those of all tenants.
    pub tenant: Option<String>,
    /// The secrets that sign requests.
    #[serde(default, deserialize_with = "secrets")]
    pub secret: Vec<SigningSecret>,
    /// Files with one secret a line.
    #[serde(default, deserialize_with = "several")]
    pub secret_file: Vec<PathBuf>,
    /// Names of variables with secrets.
    #[serde(default, deserialize_with = "several")]
    pub secret_env: Vec<String>,
    /// The largest number of requests at once.
    #[serde(default = "concurrency")]
    pub concurrency: u32,
    /// The largest number of requests per second.
    pub rate: Option<u32>,
    /// Whether the events of an aggregate are sent one after another.
    #[serde(default)]
    pub ordered: bool,
    /// What later events of an aggregate do behind a dead one.
    #[serde(default)]
    pub on_dead: OnDeadSetting,
    /// The time limit of a request.
    #[serde(default = "timeout", with = "duration")]
    pub timeout: Duration,
    /// Whether the endpoint may have a private address.
    #[serde(default)]
    pub allow_private: bool,
    /// Whether the endpoint may be a public one without TLS.
    #[serde(default)]
    pub allow_http: bool,
    /// The file with the certificate authorities for the endpoint's certificate, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// The number of attempts after which an event is dead.
    pub max_attempts: Option<u32>,
    /// The pause before the second attempt; it doubles with every attempt.
    #[serde(default, deserialize_with = "duration::optional")]
    pub base_backoff: Option<Duration>,
    /// The longest pause between two attempts.
    #[serde(default, deserialize_with = "duration::optional")]
    pub max_backoff: Option<Duration>,
}

/// What later events of an aggregate do behind a dead one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadSetting {
    /// They wait until an operator has decided about it.
    #[default]
    Hold,
    /// They are sent.
    Pass,
}

/// A pattern of event types, in which `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypePattern(String);

impl FromStr for TypePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() || text.contains(char::is_control) {
            return Err("is not a type; write it as order.paid, order.* or *".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl TypePattern {
    /// Returns whether an event of type `kind` matches.
    pub(crate) fn matches(&self, kind: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == kind };
        let Some(mut left) = kind.strip_prefix(first) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(last)
    }
}

/// Parses secrets. The error does not contain them.
fn secrets<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<SigningSecret>, D::Error> {
    let all = several::<D, String>(from)?;
    all.iter()
        .map(|text| {
            text.parse().map_err(|why| serde::de::Error::custom(format_args!("secret {why}")))
        })
        .collect()
}

fn every_type() -> Vec<TypePattern> {
    vec![TypePattern("*".to_owned())]
}

fn concurrency() -> u32 {
    8
}

fn timeout() -> Duration {
    Duration::from_secs(15)
}

fn patterns<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<TypePattern>, D::Error> {
    several::<D, String>(from)?.iter().map(|text| super::gateway::parse(text)).collect()
}

impl SubscriptionSettings {
    /// Returns the policy of the group: the settings of the subscription, else those of `[inbox]`.
    pub(crate) fn policy(&self, inbox: &InboxSettings) -> Policy {
        let inbox = InboxSettings {
            max_attempts: self.max_attempts.or(inbox.max_attempts),
            base_backoff: self.base_backoff.or(inbox.base_backoff),
            max_backoff: self.max_backoff.or(inbox.max_backoff),
            ..inbox.clone()
        };
        inbox.policy()
    }

    /// Returns the longest pause between two attempts.
    pub(crate) fn longest_pause(&self, inbox: &InboxSettings) -> Duration {
        match self.policy(inbox).on_failure {
            OnFailure::Backoff { cap, .. } => cap,
            OnFailure::Retry | OnFailure::Release | OnFailure::Keep => Duration::ZERO,
        }
    }

    /// Refuses values that cannot work.
    fn check(&self, inbox: &InboxSettings) -> Result<(), ExitError> {
        let wrong = |name: &str, what: &dyn fmt::Display| {
            let group = &self.group;
            Err(ExitError::usage(format_args!(
                "the setting {name} of [[subscription]] {group:?} {what}"
            )))
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=MAX_GROUP).contains(&self.group.len()) || !self.group.bytes().all(plain) {
            return wrong(
                "group",
                &"must be 1 to 80 letters, digits, dots, hyphens and underscores",
            );
        }
        if self.types.is_empty() {
            return wrong(
                "types",
                &"is empty, so nothing would be sent; leave it out for every type",
            );
        }
        if self.tenant.as_ref().is_some_and(|tenant| tenant.trim().is_empty()) {
            return wrong("tenant", &"is empty; leave it out for every tenant");
        }
        if !(1..=MAX_CONCURRENCY).contains(&self.concurrency) {
            return wrong("concurrency", &format_args!("must be 1 to {MAX_CONCURRENCY}"));
        }
        if self.rate == Some(0) {
            return wrong("rate", &"is 0, so nothing would be sent; leave it out for no limit");
        }
        if self.timeout < Duration::from_millis(1) || self.timeout > MAX_TIMEOUT {
            return wrong("timeout", &format_args!("must be 1ms to {MAX_TIMEOUT:?}"));
        }
        if self.max_attempts == Some(0) {
            return wrong("max_attempts", &"is 0; it must be 1 or more");
        }
        if let OnFailure::Backoff { base, cap } = self.policy(inbox).on_failure
            && (base.is_zero() || base > cap)
        {
            let pauses =
                format_args!("({base:?}) must be above 0 and at most max_backoff ({cap:?})");
            return wrong("base_backoff", &pauses);
        }
        if self.on_dead == OnDeadSetting::Pass && !self.ordered {
            return wrong("on_dead", &"has a meaning only with ordered = true");
        }
        match self.url.refusal(self.allow_private, self.allow_http) {
            Some(why) => wrong("url", &why),
            None => Ok(()),
        }
    }
}

/// Refuses subscriptions that cannot work, and two of one group.
pub(super) fn check(all: &[SubscriptionSettings], inbox: &InboxSettings) -> Result<(), ExitError> {
    let mut groups = HashSet::new();
    for subscription in all {
        subscription.check(inbox)?;
        let group = &subscription.group;
        if !groups.insert(group) {
            return Err(ExitError::usage(format_args!(
                "two [[subscription]] sections have the group {group:?}; each event is handled once per group, so \
                 give each its own"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::settings::ServerSettings;

    fn refused(more: &str) -> String {
        let text =
            format!("[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example/in\"\n{more}");
        ServerSettings::parse(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_pattern_matches_types() {
        let matches = |pattern: &str, kind: &str| {
            pattern.parse::<super::TypePattern>().unwrap().matches(kind)
        };
        for (pattern, kind) in [
            ("*", "order.paid"),
            ("order.paid", "order.paid"),
            ("order.*", "order.paid"),
            ("*.paid", "order.paid"),
            ("o*r.*d", "order.paid"),
            ("order.paid*", "order.paid"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, kind), "{pattern} {kind}");
        }
        for (pattern, kind) in [
            ("order", "order.paid"),
            ("order.*", "orders.paid"),
            ("*.paid", "order.paid.twice"),
            ("a*a", "a"),
            ("order.PAID", "order.paid"),
            ("*x*", "order"),
        ] {
            assert!(!matches(pattern, kind), "{pattern} {kind}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_name_and_group() {
        for (more, named) in [
            ("types = []", "types"),
            ("types = [\"\"]", "types"),
            ("tenant = \"\"", "tenant"),
            ("concurrency = 0", "concurrency"),
            ("rate = 0", "rate"),
            ("timeout = \"0s\"", "timeout"),
            ("timeout = 3", "30s"),
            ("max_attempts = 0", "max_attempts"),
            ("base_backoff = \"1h\"", "max_backoff"),
            ("on_dead = \"pass\"", "ordered = true"),
            ("on_dead = \"skip\"", "hold"),
            ("retries = 3", "retries"),
            (
                "[[subscription]]\ngroup = \"A\"\nurl = \"https://y.example\"",
                "two [[subscription]]",
            ),
            ("[[subscription]]\ngroup = \"a b\"\nurl = \"https://y.example\"", "\"a b\""),
            ("[[subscription]]\ngroup = \"B\"", "url"),
            ("[[subscription]]\nurl = \"https://y.example\"", "group"),
        ] {
            let shown = refused(more);
            assert!(shown.contains(named), "{more}: {shown}");
        }
    }

    #[test]
    fn a_malformed_secret_is_refused_and_not_shown() {
        for secret in
            ["whsec_c2hvcnQ=", "c2VjcmV0LXRoYXQtaXMtbG9uZy1lbm91Z2g=", "whsec_not base64!"]
        {
            let shown = refused(&format!("secret = \"{secret}\""));
            assert!(shown.contains("secret") && !shown.contains(secret), "{shown}");
        }
        let text = "[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example/in\"\n\
                    secret = \"whsec_c2VjcmV0LXRoYXQtaXMtbG9uZy1lbm91Z2g=\"";
        let settings = ServerSettings::parse(text).unwrap();
        assert!(!format!("{settings:?}").contains("c2VjcmV0"), "{settings:?}");
    }
}
