//! Defines commands: a key, a fingerprint, and the settings of the operation.

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

/// The result of a verifier: whether a crashed attempt took effect.
///
/// ```
/// use std::time::Duration;
/// use semel_core::executor::Verification;
/// use semel_core::{Command, Key, Outcome};
///
/// # enum Status { Paid { receipt: String }, Unknown, Pending }
/// # async fn status_at_the_bank(_: &str) -> Status { Status::Pending }
/// let pay = Command::new(Key::command("acme", "PAY", "k-1")?).verify(|claim| async move {
///     let Ok(key) = claim.downstream_key("pay") else { return Verification::Unknown };
///     match status_at_the_bank(&key).await {
///         Status::Paid { receipt } => Outcome::json(&receipt)
///             .map_or(Verification::Unknown, Verification::Done),
///         Status::Unknown => Verification::NotDone,
///         Status::Pending => Verification::Later(Duration::from_secs(30)),
///     }
/// });
/// # Ok::<(), semel_core::InvalidKey>(())
/// ```
#[derive(Clone, Debug)]
pub enum Verification {
    /// The attempt took effect, with this outcome. The outcome is recorded, and the work does not
    /// run.
    Done(Outcome),
    /// The attempt had no effect. The work runs.
    NotDone,
    /// Whether the attempt took effect cannot be determined. The record becomes Uncertain until an
    /// operator resolves it.
    Unknown,
    /// Whether the attempt took effect cannot be determined yet. The work does not run; the first
    /// call after this time verifies again, even if this process ends meanwhile. Until then every
    /// call is answered that the operation is in progress, with the remaining time as
    /// `lease_remaining`; the call that ran the verifier is answered so at once, without waiting. A
    /// verification does not count as an attempt. The time is clamped to [`Policy::MIN_LEASE`] and
    /// [`Policy::MAX_LEASE`].
    Later(Duration),
}

pub(super) type RetryPayload = Arc<dyn Fn() -> Outcome + Send + Sync>;
pub(super) type Verifier = Arc<dyn Fn(Context) -> BoxFuture<'static, Verification> + Send + Sync>;

/// An operation that is to run once. Settings that are not set come from the executor's default
/// policy.
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
    work_timeout: Option<Option<Duration>>,
    wait: Option<Wait>,
    woken: Option<Woken>,
    on_failure: Option<OnFailure>,
    on_crash: Option<OnCrash>,
    max_attempts: Option<Option<u32>>,
    max_outcome: Option<usize>,
    claim_first: bool,
    attended: bool,
    verifier: Option<Verifier>,
    retry_payload: Option<RetryPayload>,
}

impl Command {
    /// Creates a command without a fingerprint: any request with this key is a repeat.
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

    /// Sets the fingerprint of the request: a repeat with another fingerprint is refused. Default
    /// none.
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Sets [`Policy::keep`].
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Sets [`Policy::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets [`Policy::work_timeout`].
    pub fn work_timeout(mut self, limit: Duration) -> Self {
        self.work_timeout = Some(Some(limit));
        self
    }

    /// Sets [`Policy::wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets [`Policy::woken`].
    pub fn woken(mut self, woken: Woken) -> Self {
        self.woken = Some(woken);
        self
    }

    /// Sets [`Policy::on_failure`].
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = Some(on_failure);
        self
    }

    /// Sets [`Policy::on_crash`]; for [`OnCrash::Verify`] use [`Command::verify`].
    pub fn on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = Some(on_crash);
        self
    }

    /// Sets [`Policy::max_attempts`].
    pub fn max_attempts(mut self, max: u32) -> Self {
        self.max_attempts = Some(Some(max));
        self
    }

    /// Sets [`Policy::max_outcome`].
    pub fn max_outcome(mut self, bytes: usize) -> Self {
        self.max_outcome = Some(bytes);
        self
    }

    /// Commits the claim before the work of a transaction starts. This costs one more commit. Crash
    /// policies, the counting of crashed attempts and downstream keys need it, because they must
    /// survive a crash of the work. Outside transactions the claim is always committed first.
    pub fn claim_first(mut self) -> Self {
        self.claim_first = true;
        self
    }

    /// Declares that the caller polls the call's future until the call ends or the future is
    /// dropped, as servers do. The attempt then runs in the caller's task until that future is
    /// dropped. By default the attempt moves to its own task as soon as the work waits, so that it
    /// continues even if the caller stops polling.
    pub fn attended(mut self) -> Self {
        self.attended = true;
        self
    }

    /// Sets a verifier, and [`OnCrash::Verify`]: after a crash, `verifier` determines whether the
    /// attempt took effect before the work runs again. [`Verification`] has an example.
    pub fn verify<F, Fut>(mut self, verifier: F) -> Self
    where
        F: Fn(Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verification> + Send + 'static,
    {
        self.on_crash = Some(OnCrash::Verify);
        self.verifier = Some(Arc::new(move |context| Box::pin(verifier(context))));
        self
    }

    /// Sets the data that is needed to run the operation again. The payload is stored with the
    /// claim and kept after a failure or a crash, so that a scheduler can run the operation: see
    /// [`Filter::due`](crate::store::Filter::due). `pack` is called only when the payload is
    /// written; work in one transaction writes it only after a failure. Since there may be no other
    /// copy, failures and crashes of such an operation do not expire: [`keep`](Self::keep) applies
    /// to its outcome only.
    pub fn retry_payload(mut self, pack: impl Fn() -> Outcome + Send + Sync + 'static) -> Self {
        self.retry_payload = Some(Arc::new(pack));
        self
    }

    /// Replaces every setting of this command by `policy`: the executor's default policy and
    /// setters that were called before have no effect any more. Setters that are called afterwards,
    /// and [`verify`](Self::verify), change single settings.
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::{Command, Key, Policy};
    ///
    /// // No limit, also where the executor's default policy has one.
    /// let import = Policy { work_timeout: None, ..Policy::default() };
    /// let command = Command::new(Key::command("acme", "IMPORT", "k-1")?)
    ///     .policy(&import)
    ///     .lease(Duration::from_secs(60));
    /// # Ok::<(), semel_core::InvalidKey>(())
    /// ```
    pub fn policy(mut self, policy: &Policy) -> Self {
        self.keep = Some(policy.keep);
        self.lease = Some(policy.lease);
        self.work_timeout = Some(policy.work_timeout);
        self.wait = Some(policy.wait);
        self.woken = Some(policy.woken);
        self.on_failure = Some(policy.on_failure);
        self.on_crash = Some(policy.on_crash);
        self.max_attempts = Some(policy.max_attempts);
        self.max_outcome = Some(policy.max_outcome);
        self
    }

    /// Returns the key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns this command with every setting filled in and validated.
    pub(super) fn resolve(self, defaults: &Policy) -> Result<ResolvedCommand, InvalidPolicy> {
        let policy = Policy {
            keep: self.keep.unwrap_or(defaults.keep),
            lease: self.lease.unwrap_or(defaults.lease),
            work_timeout: self.work_timeout.unwrap_or(defaults.work_timeout),
            wait: self.wait.unwrap_or(defaults.wait),
            woken: self.woken.unwrap_or(defaults.woken),
            on_failure: self.on_failure.unwrap_or(defaults.on_failure),
            on_crash: self.on_crash.unwrap_or(defaults.on_crash),
            max_attempts: self.max_attempts.unwrap_or(defaults.max_attempts),
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

/// A command with every setting filled in and validated.
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
    /// Returns how long a record that has not succeeded is kept: for ever if it has a retry
    /// payload, since there may be no other copy of the payload.
    pub(super) fn keep_unfinished(&self) -> Duration {
        match self.retry_payload {
            Some(_) => Duration::MAX,
            None => self.policy.keep,
        }
    }

    /// Requests that the attempt moves to its own task, because it may take long.
    pub(super) fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Returns whether the attempt should move to its own task.
    pub(super) fn is_detached(&self) -> bool {
        guard!(Spawn) && !self.attended && self.detached.load(Ordering::Relaxed)
    }

    /// Returns the part of this command that the judge needs.
    pub(super) fn request(&self) -> judge::Request {
        judge::Request {
            fingerprint: self.fingerprint,
            max_attempts: self.policy.max_attempts,
            can_verify: self.verifier.is_some(),
        }
    }

    /// Returns an error if the crash policy needs a claim that is committed before the work, and
    /// `committed` is false.
    pub(super) fn check_crash_policy(&self, committed: bool) -> Result<(), InvalidPolicy> {
        match self.policy.on_crash {
            OnCrash::Hold | OnCrash::Verify if !committed => {
                Err(InvalidPolicy::NeedsClaimFirst(self.policy.on_crash))
            }
            OnCrash::Rerun | OnCrash::Hold | OnCrash::Verify => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a policy that differs from the default in every setting, and has a value in every
    /// optional setting.
    fn other() -> Policy {
        Policy {
            keep: Duration::from_secs(1),
            lease: Duration::from_secs(2),
            work_timeout: Some(Duration::from_secs(3)),
            wait: Wait::UpTo(Duration::from_secs(4)),
            woken: Woken::Report,
            on_failure: OnFailure::Keep,
            on_crash: OnCrash::Hold,
            max_attempts: Some(5),
            max_outcome: 6,
        }
    }

    fn resolved(command: impl FnOnce(Command) -> Command, defaults: &Policy) -> Policy {
        let key = Key::command("acme", "PAY", "k-1").expect("a valid key");
        let command = command(Command::new(key)).resolve(defaults);
        command.expect("a valid policy").policy
    }

    #[test]
    fn the_policy_of_a_command_replaces_the_defaults_and_earlier_setters() {
        let default = Policy::default();
        for (given, defaults) in [(&other(), &default), (&default, &other())] {
            assert_eq!(resolved(|command| command, defaults), *defaults);
            assert_eq!(resolved(|command| command.policy(given), defaults), *given);
            let earlier = |command: Command| {
                let brief = Duration::from_secs(9);
                command.work_timeout(brief).max_attempts(9).keep(brief).policy(given)
            };
            assert_eq!(resolved(earlier, defaults), *given);
        }
    }

    #[test]
    fn a_setter_after_the_policy_changes_one_setting_of_it() {
        let later = |command: Command| command.policy(&Policy::default()).max_attempts(9);
        let expected = Policy { max_attempts: Some(9), ..Policy::default() };
        assert_eq!(resolved(later, &other()), expected);
    }
}
