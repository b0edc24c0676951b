//! The store's connection, and the scripts that write a record: their arguments and answers.
//!
//! Nothing is decided here. The scripts compute fences, leases and expiry from the server's clock.
//! The verbs of the store are in `ledger`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use semel_core::clock::Timestamp;
use semel_core::store::{Draft, Error, ErrorKind, Result, Settlement};
use semel_core::{Digest, ErrorText, Fence, Lease, OnCrash, Record, State};

use crate::error::{Effect, Failure, unexpected};
use crate::guarantee::GuaranteeState;
use crate::keys::Keys;
use crate::layout::{self, Guard};
use crate::position::Position;
use crate::reply;
use crate::script::{self, Call, Script};
use crate::settings::Settings;
use crate::transport::{Replicas, Transport};

/// A ledger on Redis. Cheap to clone: clones share the connection, which is closed when the last
/// clone is dropped. There is no schema to migrate.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) transport: Transport,
    pub(crate) settings: Arc<Settings>,
    /// The position at which the last sweep stopped. Clones share it, so that together they sweep
    /// all records.
    pub(crate) swept: Arc<tokio::sync::Mutex<Option<Position>>>,
    pub(crate) guarantee: Arc<GuaranteeState>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.transport.is_cluster();
        f.debug_struct("RedisStore").field("cluster", &cluster).finish_non_exhaustive()
    }
}

impl RedisStore {
    pub(crate) fn new(transport: Transport, settings: Arc<Settings>) -> Self {
        let guarantee = Arc::new(GuaranteeState::new(&settings));
        Self { transport, settings, swept: Arc::default(), guarantee }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.settings.keys
    }

    /// Runs a script that writes. Also returns an error if too few replicas have confirmed the
    /// write.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        script: &Script,
        digest: &Digest,
        args: &[&[u8]],
    ) -> Result<(Value, Option<Error>)> {
        let call = Call { script, key: &self.keys().name(digest), args };
        let failed = |failure: Failure| failure.during(operation, Effect::Writes);
        let Some(replicas) = self.settings.replicas else {
            return Ok((self.transport.call(&call).await.map_err(failed)?, None));
        };
        let (value, confirmed) =
            self.transport.call_replicated(&call, replicas).await.map_err(failed)?;
        let short = confirmed < replicas.count && matches!(value, Value::Int(fence) if fence > 0);
        Ok((value, short.then(|| unconfirmed(operation, replicas, confirmed))))
    }

    async fn write(
        &self,
        operation: &'static str,
        script: &Script,
        digest: &Digest,
        args: &[&[u8]],
    ) -> Result<Value> {
        match self.run(operation, script, digest, args).await? {
            (value, None) => Ok(value),
            (_, Some(short)) => Err(short),
        }
    }

    pub(crate) async fn end(
        &self,
        operation: &'static str,
        digest: &Digest,
        guard: &Guard,
        settlement: &Settlement,
    ) -> Result<Value> {
        let packed = PackedEnding::new(settlement)
            .map_err(|what| Error::new(ErrorKind::Capacity, operation, what))?;
        let hint = digest.hint();
        let args = [
            guard.first.as_bytes(),
            guard.last.as_bytes(),
            &guard.expected,
            &packed.head,
            &packed.spans,
            &packed.tail,
            packed.collect.as_bytes(),
            self.keys().channel().as_bytes(),
            &hint.0,
        ];
        self.write(operation, &script::END, digest, &args).await
    }

    pub(crate) async fn grant(
        &self,
        guard: &Guard,
        digest: &Digest,
        draft: &Draft,
        goes_on: bool,
    ) -> Result<Value> {
        let packed = PackedClaim::new("swap", draft)?;
        let args = [
            guard.first.as_bytes(),
            guard.last.as_bytes(),
            &guard.expected,
            &layout::head(State::Running),
            &packed.attempt_id,
            &packed.rest,
            packed.collect.as_bytes(),
            if goes_on { b"1" } else { b"0" },
        ];
        let (value, short) = self.run("swap", &script::GRANT, digest, &args).await?;
        match (short, reply::int(&value)) {
            (Some(short), Some(fence)) => {
                let fence = Fence::from_i64(fence);
                let settlement = untouched(draft, goes_on);
                Err(Box::pin(self.take_back(draft, fence, settlement, short)).await)
            }
            _ => Ok(value),
        }
    }

    pub(crate) async fn redrive(&self, guard: &Guard, digest: &Digest) -> Result<Value> {
        let hint = digest.hint();
        let due_at_once = [layout::span(None), layout::span(Some(Duration::ZERO))].concat();
        let forever = layout::FOREVER.to_string();
        let args = [
            guard.first.as_bytes(),
            guard.last.as_bytes(),
            &guard.expected,
            &layout::head(State::Failed),
            &due_at_once,
            &layout::EMPTY_TAIL,
            forever.as_bytes(),
            self.keys().channel().as_bytes(),
            &hint.0,
        ];
        self.write("swap", &script::REDRIVE, digest, &args).await
    }

    pub(crate) async fn redate(&self, guard: &Guard, digest: &Digest) -> Result<Value> {
        let args = [guard.first.as_bytes(), guard.last.as_bytes(), &guard.expected[..]];
        self.write("swap", &script::REDATE, digest, &args).await
    }

    /// Takes back a claim that too few replicas have confirmed, so that a failover cannot grant it
    /// again while its holder works. Without a settlement, only its lease ends, at once.
    pub(crate) async fn take_back(
        &self,
        draft: &Draft,
        fence: Fence,
        settlement: Option<Settlement>,
        short: Error,
    ) -> Error {
        let digest = draft.key.digest();
        let lease = Lease { digest, fence, attempt_id: draft.attempt_id };
        let unconfirmed = Self {
            settings: Arc::new(Settings { replicas: None, ..(*self.settings).clone() }),
            ..self.clone()
        };
        let taken = match settlement {
            Some(settlement) => {
                unconfirmed.end("take back", &digest, &Guard::lease(&lease), &settlement).await
            }
            None => unconfirmed.extend(&lease, Duration::ZERO).await.map(|(value, _)| value),
        };
        match taken {
            Ok(_) => short.with_kind(ErrorKind::Unavailable),
            Err(_) => short,
        }
    }

    /// Renews one lease.
    async fn extend(&self, lease: &Lease, length: Duration) -> Result<(Value, Option<Error>)> {
        let (guard, stored) = (Guard::lease(lease), layout::span(Some(length)));
        let (length, forever) =
            (layout::collectable(length).to_string(), layout::FOREVER.to_string());
        let args = [
            guard.first.as_bytes(),
            guard.last.as_bytes(),
            &guard.expected,
            &stored,
            length.as_bytes(),
            forever.as_bytes(),
        ];
        self.run("open", &script::RENEW, &lease.digest, &args).await
    }

    /// Confirms a claim of the caller that was found after its reply was lost: it is unknown
    /// whether replicas have it. A further write shows that, since replicas confirm in order.
    /// Returns `false` if the caller no longer has the claim.
    pub(crate) async fn confirm(&self, draft: &Draft, record: &Record) -> Result<bool> {
        let ours = record.attempt_id == draft.attempt_id && record.state == State::Running;
        if self.settings.replicas.is_none() || !ours {
            return Ok(true);
        }
        let lease = record.lease(draft.key.digest());
        match Box::pin(self.extend(&lease, draft.lease)).await? {
            (value, None) => Ok(value == Value::Int(1)),
            // Ambiguous: the claim exists, and the caller opens it again or gives it back.
            (_, Some(short)) => Err(short),
        }
    }
}

/// Returns the settlement that takes back a claim under which nothing ran; `None` if the previous
/// attempt may have crashed and must be verified, so that only the lease may end.
pub(crate) fn untouched(draft: &Draft, goes_on: bool) -> Option<Settlement> {
    match draft.on_crash {
        _ if !goes_on => Some(Settlement::Removed),
        OnCrash::Verify => None,
        // The operation's id and its number of attempts stay.
        OnCrash::Rerun | OnCrash::Hold => {
            let error =
                ErrorText::new("too few replicas confirmed the claim; nothing ran under it");
            Some(Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep: draft.keep })
        }
    }
}

/// A claim as arguments of the scripts.
pub(crate) struct PackedClaim {
    pub(crate) attempt_id: [u8; 16],
    pub(crate) rest: Vec<u8>,
    pub(crate) collect: String,
}

impl PackedClaim {
    pub(crate) fn new(operation: &'static str, draft: &Draft) -> Result<Self> {
        let rest = layout::claim(draft)
            .map_err(|what| Error::new(ErrorKind::Capacity, operation, what))?;
        let collect = match draft.on_crash {
            // Never collected: an operator must decide on it, however late.
            OnCrash::Hold | OnCrash::Verify => String::new(),
            OnCrash::Rerun => {
                let micros = layout::collectable(draft.lease) + layout::collectable(draft.keep);
                layout::collect_after(micros).to_string()
            }
        };
        Ok(Self { attempt_id: draft.attempt_id.to_bytes(), rest, collect })
    }
}

/// A settlement as arguments of the script.
struct PackedEnding {
    head: Vec<u8>,
    spans: [u8; 24],
    tail: Vec<u8>,
    collect: String,
}

impl PackedEnding {
    fn new(settlement: &Settlement) -> std::result::Result<Self, String> {
        let (state, error, outcome, retry, keep) = match settlement {
            Settlement::Succeeded { outcome, keep } => {
                (State::Succeeded, None, Some(outcome), None, Some(*keep))
            }
            Settlement::Failed { error, retry_after, keep } => {
                (State::Failed, Some(error), None, *retry_after, Some(*keep))
            }
            Settlement::Dead { error } => (State::Dead, Some(error), None, None, None),
            Settlement::Uncertain { error } => (State::Uncertain, Some(error), None, None, None),
            Settlement::Discarded { error } => (State::Discarded, Some(error), None, None, None),
            Settlement::Removed => {
                let (head, tail, collect) = (Vec::new(), Vec::new(), String::new());
                return Ok(Self { head, spans: layout::spans(None, None, None), tail, collect });
            }
        };
        let collect = |keep| layout::collect_after(layout::collectable(keep)).to_string();
        Ok(Self {
            head: layout::head(state).to_vec(),
            spans: layout::spans(None, retry, keep),
            tail: layout::tail(error, outcome)?,
            collect: keep.map_or_else(String::new, collect),
        })
    }
}

fn unconfirmed(operation: &'static str, replicas: Replicas, confirmed: u32) -> Error {
    let Replicas { count, within } = replicas;
    let what =
        format!("written, but only {confirmed} of {count} replicas confirmed it within {within:?}");
    Error::new(ErrorKind::Ambiguous, operation, what)
}

/// Reads the answer of a guarded script: the fence, or `None` if the guard did not hold.
pub(crate) fn fence_of(operation: &'static str, value: &Value) -> Result<Option<Fence>> {
    match reply::int(value) {
        Some(0) => Ok(None),
        Some(-1) => Err(unreadable(operation)),
        Some(fence) => Ok(Some(Fence::from_i64(fence))),
        None => Err(unexpected(operation, value)),
    }
}

pub(crate) fn unreadable(operation: &'static str) -> Error {
    let what = "the record is damaged or of a newer layout; nothing was written over it";
    Error::new(ErrorKind::Corrupt, operation, what)
}

/// Reads a record and the clock from the answer of a script.
pub(crate) fn record_and_now(operation: &'static str, value: Value) -> Result<(Record, Timestamp)> {
    let Value::Array(fields) = value else { return Err(unexpected(operation, &value)) };
    let Ok([Value::BulkString(bytes), Value::Int(now)]) = <[Value; 2]>::try_from(fields) else {
        return Err(Error::new(ErrorKind::Corrupt, operation, "the answer is not record and time"));
    };
    let record = layout::decode(Bytes::from(bytes))
        .map_err(|what| Error::new(ErrorKind::Corrupt, operation, what))?;
    Ok((record, Timestamp::from_micros(now)))
}
