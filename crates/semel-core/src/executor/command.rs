//! What a caller asks for: a key, what the request looks like, and how this operation behaves.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Context;
use crate::fingerprint::Fingerprint;
use crate::judge;
use crate::key::Key;
use crate::outcome::Outcome;
use crate::policy::{InvalidPolicy, OnCrash, OnFailure, Policy, Wait, Woken};
use crate::store::BoxFuture;

/// What a verifier found out about a crashed attempt.
#[derive(Clone, Debug)]
pub enum Verification {
    /// It happened, and this is its answer: it is recorded, and nothing runs.
    Done(Outcome),
    /// It did not happen: the work runs.
    NotDone,
    /// Cannot be told: the record turns Uncertain.
    Unknown,
}

pub(super) type RetryPayload = Arc<dyn Fn() -> Outcome + Send + Sync>;
pub(super) type Verifier = Arc<dyn Fn(Context) -> BoxFuture<'static, Verification> + Send + Sync>;

/// An operation to be done once. Settings left out are the executor's.
///
/// ```
/// use std::time::Duration;
/// use semel_core::{Command, Fingerprint, Key, OnFailure, Wait};
///
/// let key = Key::command("acme", "ORDER_CREATE", "k-1")?;
/// let command = Command::new(key)
///     .fingerprint(Fingerprint::of_body(br#"{"sku":"A-1"}"#))
///     .wait(Wait::UpTo(Duration::from_secs(2)))
///     .on_failure(OnFailure::backoff());
/// # Ok::<(), semel_core::InvalidKey>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Command {
    key: Key,
    fingerprint: Fingerprint,
    keep: Option<Duration>,
    lease: Option<Duration>,
    work_timeout: Option<Duration>,
    wait: Option<Wait>,
    woken: Option<Woken>,
    on_failure: Option<OnFailure>,
    on_crash: Option<OnCrash>,
    max_attempts: Option<u32>,
    max_outcome: Option<usize>,
    claim_first: bool,
    attended: bool,
    verifier: Option<Verifier>,
    retry_payload: Option<RetryPayload>,
}

impl Command {
    /// The operation of `key`, matching any request.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            fingerprint: Fingerprint::none(),
            keep: None,
            lease: None,
            work_timeout: None,
            wait: None,
            woken: None,
            on_failure: None,
            on_crash: None,
            max_attempts: None,
            max_outcome: None,
            claim_first: false,
            attended: false,
            verifier: None,
            retry_payload: None,
        }
    }

    /// What makes a repeat the same request. Default: anything is.
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// See [`Policy::keep`].
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// See [`Policy::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// See [`Policy::work_timeout`].
    pub fn work_timeout(mut self, limit: Duration) -> Self {
        self.work_timeout = Some(limit);
        self
    }

    /// See [`Policy::wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// See [`Policy::woken`].
    pub fn woken(mut self, woken: Woken) -> Self {
        self.woken = Some(woken);
        self
    }

    /// See [`Policy::on_failure`].
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = Some(on_failure);
        self
    }

    /// See [`Policy::on_crash`]; for [`OnCrash::Verify`] use [`Command::verify`].
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = Some(on_crash);
        self
    }

    /// See [`Policy::max_attempts`].
    pub fn max_attempts(mut self, max: u32) -> Self {
        self.max_attempts = Some(max);
        self
    }

    /// See [`Policy::max_outcome`].
    pub fn max_outcome(mut self, bytes: usize) -> Self {
        self.max_outcome = Some(bytes);
        self
    }

    /// In a transaction: commit the claim before the work starts. Costs one commit more; needed for
    /// what must survive a crash of the work (crash policies, attempts across crashes, downstream
    /// keys). Claims outside transactions always come first.
    pub fn claim_first(mut self) -> Self {
        self.claim_first = true;
        self
    }

    /// The caller polls the call until it has ended or is dropped, as a server does with what it is
    /// asked: the attempt then needs no task of its own before its caller leaves. By default it has
    /// one as soon as it waits, so that it goes on also while nobody polls its caller.
    pub fn attended(mut self) -> Self {
        self.attended = true;
        self
    }

    /// After a crash, asks `verifier` whether it happened before running it again.
    pub fn verify<F, Fut>(mut self, verifier: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verification> + Send + 'static,
    {
        self.on_crash = Some(OnCrash::Verify);
        self.verifier = Some(Arc::new(move |context| Box::pin(verifier(context))));
        self
    }

    /// What running it again takes. It is stored with the claim and stays with a failure or a crash,
    /// so that somebody else can run the operation: see [`Filter::due`](crate::store::Filter::due).
    /// Only packed where it is written: work in one transaction leaves none when it succeeds. And
    /// since nobody else may have what was packed, neither its failures nor its crashes expire:
    /// [`keep`](Self::keep) is for its answer.
    pub fn retry_payload(mut self, pack: impl Fn() -> Outcome + Send + Sync + 'static) -> Self {
        self.retry_payload = Some(Arc::new(pack));
        self
    }

    /// Every setting at once. Single ones that are said later stand over it.
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.keep = Some(policy.keep);
        self.lease = Some(policy.lease);
        self.work_timeout = policy.work_timeout;
        self.wait = Some(policy.wait);
        self.woken = Some(policy.woken);
        self.on_failure = Some(policy.on_failure);
        self.on_crash = Some(policy.on_crash);
        self.max_attempts = policy.max_attempts;
        self.max_outcome = Some(policy.max_outcome);
        self
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// This command with every setting filled in.
    pub(super) fn resolve(self, defaults: &Policy) -> Result<ResolvedCommand, InvalidPolicy> {
        let policy = Policy {
            keep: self.keep.unwrap_or(defaults.keep),
            lease: self.lease.unwrap_or(defaults.lease),
            work_timeout: self.work_timeout.or(defaults.work_timeout),
            wait: self.wait.unwrap_or(defaults.wait),
            woken: self.woken.unwrap_or(defaults.woken),
            on_failure: self.on_failure.unwrap_or(defaults.on_failure),
            on_crash: self.on_crash.unwrap_or(defaults.on_crash),
            max_attempts: self.max_attempts.or(defaults.max_attempts),
            max_outcome: self.max_outcome.unwrap_or(defaults.max_outcome),
        };
        policy.check()?;
        if policy.on_crash == OnCrash::Verify && self.verifier.is_none() {
            return Err(InvalidPolicy::NoVerifier);
        }
        Ok(ResolvedCommand {
            key: self.key,
            fingerprint: self.fingerprint,
            policy,
            claim_first: self.claim_first,
            attended: self.attended,
            verifier: self.verifier,
            retry_payload: self.retry_payload,
            detached: AtomicBool::new(false),
        })
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A command with every setting filled in and checked.
pub(super) struct ResolvedCommand {
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    pub(super) policy: Policy,
    pub(super) claim_first: bool,
    attended: bool,
    pub(super) verifier: Option<Verifier>,
    pub(super) retry_payload: Option<RetryPayload>,
    detached: AtomicBool,
}

impl ResolvedCommand {
    /// How long its record stays while it has not ended for good. What brings along what running it
    /// again takes is owed by us alone, so it never goes by itself: only its answer expires.
    pub(super) fn keep_unfinished(&self) -> Duration {
        match self.retry_payload {
            Some(_) => Duration::MAX,
            None => self.policy.keep,
        }
    }

    /// Asks for a task of its own for the attempt: it may take long.
    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Whether the attempt goes on in a task of its own.
    pub(super) fn is_detached(&self) -> bool {
        guard!(Spawn) && !self.attended && self.detached.load(Ordering::Relaxed)
    }

    /// The question to the judge.
    pub(super) fn request(&self) -> judge::Request {
        judge::Request {
            fingerprint: self.fingerprint,
            max_attempts: self.policy.max_attempts,
            can_verify: self.verifier.is_some(),
        }
    }

    /// Whether this command's crash policy can be kept by a claim that is `committed` before the work.
    pub(super) fn survives_a_crash(&self, committed: bool) -> Result<(), InvalidPolicy> {
        match self.policy.on_crash {
            OnCrash::Hold | OnCrash::Verify if !committed => {
                Err(InvalidPolicy::NeedsClaimFirst(self.policy.on_crash))
            }
            OnCrash::Rerun | OnCrash::Hold | OnCrash::Verify => Ok(()),
        }
    }
}
