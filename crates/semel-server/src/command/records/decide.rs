//! `semel records release` and `resolve`: an operator decides the outcome of an operation.
//!
//! A decision applies to the version of the record that was read. Only renewals are allowed in
//! between: they change only the end of the lease.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use semel_core::store::{Listed, Store as _};
use semel_core::{AnyStore, Holder, Operate as _, Operated, Resolution, State};
use serde_json::json;

use super::super::audit::{self, AuditArgs, AuditEntry};
use super::super::{shown, words};
use super::{answer, entry};
use crate::exit::ExitError;

/// The number of times that a verb tries to change a record that is renewed in the meantime.
const TRIES: u32 = 5;

#[derive(Clone, Debug, Args)]
pub(super) struct DecisionArgs {
    /// Decide even if the lease still runs: the holder's outcome is refused, its work goes on
    #[arg(long)]
    force: bool,
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) by: AuditArgs,
}

#[derive(Clone, Debug, Args)]
pub(super) struct ResolutionArgs {
    /// The operation succeeded: duplicates get the content of FILE (- is standard input)
    #[arg(long, value_name = "FILE")]
    succeeded: Option<PathBuf>,
    /// The operation failed: duplicates get the failure until the record expires
    #[arg(long)]
    failed: bool,
    /// The operation did not happen: the next caller runs it
    #[arg(long)]
    rerun: bool,
    /// Content type of FILE [default: detected]
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["failed", "rerun"])]
    content_type: Option<String>,
    /// HTTP status of the outcome [default: 200]
    #[arg(long, value_name = "CODE", conflicts_with_all = ["failed", "rerun"],
        value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// How long the decision is kept, 1s or more [default: keep of the record]
    #[arg(long, value_name = "DURATION", conflicts_with = "rerun", value_parser = words::kept)]
    keep: Option<Duration>,
}

impl ResolutionArgs {
    /// Returns the resolution, and its name in the past tense.
    pub(super) fn resolution(
        &self,
        listed: &Listed,
        reason: Option<&str>,
    ) -> Result<(&'static str, Resolution), ExitError> {
        let keep = self.keep.unwrap_or(listed.record.keep);
        if let Some(file) = &self.succeeded {
            let outcome =
                answer::read(listed.key.kind(), file, self.content_type.as_deref(), self.status)?;
            return Ok(("resolved as succeeded", Resolution::Happened { outcome, keep }));
        }
        if self.failed {
            let reason = reason.unwrap_or("decided by an operator").to_owned();
            return Ok(("resolved as failed", Resolution::Failed { reason, keep }));
        }
        Ok(("resolved to be run again", Resolution::DidNotHappen))
    }
}

pub(super) async fn decide(
    ledger: &AnyStore,
    listed: &Listed,
    how: &DecisionArgs,
    (verb, done): (&str, &str),
    json: bool,
    resolution: Resolution,
) -> Result<(), ExitError> {
    let (key, reason) = (&listed.key, how.by.reason.as_deref());
    let mut about = audit::seen(listed, how.force);
    about["decision"] = done.into();
    let trail = AuditEntry::begin(verb, &how.by.actor, reason, about, how.dry_run)?;
    let holder = if how.force { Holder::Overruled } else { Holder::Respected };
    let operated = match how.dry_run {
        true => foresee(ledger, key, holder).await?,
        false => decided(ledger, listed, &resolution, holder).await?,
    };
    trail.end(u64::from(operated == Operated::Done));
    match operated {
        Operated::Done if json => shown::json(&json!({
            "done": done, "digest": words::hex(key.digest().as_bytes()), "dry_run": how.dry_run,
            "reason": reason,
        })),
        Operated::Done => {
            let would = if how.dry_run { "would be " } else { "" };
            let why =
                reason.map_or_else(String::new, |reason| format!(": {}", shown::clean(reason)));
            shown::line(format!("{} {would}{done}{why}", entry::name(key)))
        }
        Operated::Refused { state: State::Running } => {
            Err(ExitError::failed(held(ledger, key).await?))
        }
        other @ (Operated::Missing | Operated::Moved | Operated::Refused { .. }) => {
            Err(refused(other))
        }
    }
}

/// Applies the decision to the version that was read, or to a later version that the same attempt
/// has renewed.
async fn decided(
    ledger: &AnyStore,
    listed: &Listed,
    resolution: &Resolution,
    holder: Holder,
) -> Result<Operated, ExitError> {
    let (key, mut seen) = (&listed.key, listed.record.version());
    let mut operated = ledger.decide_seen(key, seen, resolution.clone(), holder).await?;
    for _ in 1..TRIES {
        if operated != Operated::Moved || listed.record.state != State::Running {
            break;
        }
        let Some(found) = ledger.peek(key).await? else { return Ok(Operated::Missing) };
        if found.record.state != State::Running || found.record.attempt_id != seen.attempt_id {
            break;
        }
        seen = found.record.version();
        operated = ledger.decide_seen(key, seen, resolution.clone(), holder).await?;
    }
    Ok(operated)
}

/// Returns the result that [`semel_core::Operate::decide`] would have, without changing the record.
async fn foresee(
    ledger: &AnyStore,
    key: &semel_core::Key,
    holder: Holder,
) -> Result<Operated, ExitError> {
    let Some(found) = ledger.peek(key).await? else { return Ok(Operated::Missing) };
    let state = found.record.state;
    let held = found.record.held(found.now) && holder == Holder::Respected;
    Ok(match state == State::Succeeded || held {
        true => Operated::Refused { state },
        false => Operated::Done,
    })
}

/// Returns the message for a record that is held, with its holder and the remaining time of its
/// lease.
async fn held(ledger: &AnyStore, key: &semel_core::Key) -> Result<String, ExitError> {
    let holder = match ledger.peek(key).await? {
        Some(found) => {
            let left = found.record.lease_until.and_then(|until| until.remaining(found.now));
            let left = left.map_or_else(String::new, |left| format!(" for {}", shown::span(left)));
            format!("{} holds it{left}", shown::clean(&found.record.owner))
        }
        None => "another caller held it".to_owned(),
    };
    Ok(format!(
        "the operation runs: {holder} unless it renews its lease; wait, or decide anyway with --force"
    ))
}

/// Returns the error for a verb that changed nothing.
pub(super) fn refused(operated: Operated) -> ExitError {
    match operated {
        Operated::Refused { state: State::Succeeded } => ExitError::failed(
            "the operation succeeded, and an outcome that was delivered is not changed; `records purge` \
             removes it altogether",
        ),
        Operated::Refused { state } => ExitError::failed(format_args!(
            "the record is {}, which this does not apply to",
            state.name()
        )),
        Operated::Missing => ExitError::failed("the record no longer exists"),
        Operated::Moved | Operated::Done => {
            ExitError::failed("the record changed meanwhile and was left alone; show it again")
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::store::memory::MemoryStore;
    use semel_core::store::{
        Draft, Filter, Inspect as _, Opened, Renewer as _, Settled, Settlement,
    };
    use semel_core::{
        AttemptId, ErrorText, Fingerprint, Key, Lease, OnCrash, OperationId, Outcome, Recorded,
    };

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn key() -> Key {
        Key::command("acme", "PAY", "k").unwrap()
    }

    /// Claims the key, which must be free.
    async fn claimed(ledger: &AnyStore) -> Lease {
        let draft = Draft {
            key: key(),
            fingerprint: Fingerprint::none(),
            operation_id: OperationId::generate(),
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "o".into(),
            lease: HOUR,
            on_crash: OnCrash::Rerun,
            keep: HOUR,
            retry_payload: None,
        };
        let opened = ledger.open(&draft).await.unwrap();
        let Opened::Inserted { fence } = opened else { panic!("taken: {opened:?}") };
        Lease { digest: key().digest(), fence, attempt_id: draft.attempt_id }
    }

    async fn settled_record(ledger: &AnyStore, ending: Settlement) {
        let lease = claimed(ledger).await;
        assert_eq!(ledger.settle(&lease, &ending).await.unwrap(), Settled::Done);
    }

    async fn only_record(ledger: &AnyStore) -> Listed {
        let page = ledger.survey(&Filter::default(), None, 2).await.unwrap();
        page.entries.into_iter().next().unwrap()
    }

    async fn release(ledger: &AnyStore, listed: &Listed, force: bool) -> Result<(), ExitError> {
        let how = DecisionArgs { force, dry_run: false, by: AuditArgs::default() };
        let verb = ("records release", "released");
        decide(ledger, listed, &how, verb, true, Resolution::DidNotHappen).await
    }

    /// Replaces the record by another one to which the decision would apply as well.
    #[tokio::test]
    async fn a_record_that_changed_since_it_was_read_is_left_alone() {
        let failed = || Settlement::Failed {
            error: ErrorText::new("no"),
            retry_after: Some(HOUR),
            keep: HOUR,
        };
        for (seen, now) in [
            (failed(), Settlement::Uncertain { error: ErrorText::new("?") }),
            (Settlement::Dead { error: ErrorText::new("no") }, failed()),
            (Settlement::Uncertain { error: ErrorText::new("?") }, {
                let outcome = Recorded::Whole(Outcome::empty());
                Settlement::Succeeded { outcome, keep: HOUR }
            }),
        ] {
            for force in [false, true] {
                let ledger = AnyStore::new(MemoryStore::new());
                settled_record(&ledger, seen.clone()).await;
                let listed = only_record(&ledger).await;
                assert_eq!(ledger.purge(&key()).await.unwrap(), Operated::Done);
                settled_record(&ledger, now.clone()).await;
                let replaced = only_record(&ledger).await;
                let refused = release(&ledger, &listed, force).await.unwrap_err();
                assert!(refused.to_string().contains("changed meanwhile"), "{refused}");
                assert_eq!(only_record(&ledger).await, replaced);
            }
        }
    }

    #[tokio::test]
    async fn a_holder_is_overruled_despite_renewals_and_a_new_holder_is_not() {
        let ledger = AnyStore::new(MemoryStore::new());
        let lease = claimed(&ledger).await;
        let listed = only_record(&ledger).await;
        let mut renewer = ledger.renewer().await.unwrap();
        renewer.renew(&[(lease, HOUR)]).await.unwrap();
        let held = release(&ledger, &listed, false).await.unwrap_err();
        assert!(held.to_string().contains("the operation runs"), "{held}");
        release(&ledger, &listed, true).await.unwrap();

        let ledger = AnyStore::new(MemoryStore::new());
        let lease = claimed(&ledger).await;
        let listed = only_record(&ledger).await;
        assert_eq!(ledger.settle(&lease, &Settlement::Removed).await.unwrap(), Settled::Done);
        let other = claimed(&ledger).await;
        let refused = release(&ledger, &listed, true).await.unwrap_err();
        assert!(refused.to_string().contains("changed meanwhile"), "{refused}");
        let Some(found) = ledger.peek(&key()).await.unwrap() else { panic!("a record") };
        assert_eq!(found.record.attempt_id, other.attempt_id);
    }
}
