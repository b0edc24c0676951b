//! The steps that can share a statement: opening, settling, reading.
//!
//! Swaps are not among them: they are rare, and each has a shape of its own.

use semel_core::claim::Lease;
use semel_core::key::Digest;
use semel_core::store::{Draft, Opened, Peeked, Result, Settled, Settlement};

use super::Dialect;

/// The lease of a claim, and the settlement that ends the claim.
#[derive(Clone, Debug)]
pub(crate) struct SettleRequest {
    pub(crate) lease: Lease,
    pub(crate) settlement: Settlement,
}

/// A step that can share a statement with others of its kind.
pub(crate) trait Step<D: Dialect>: Clone + Send + Sync + 'static {
    /// The answer to a step.
    type Answer: Send + 'static;
    /// The name of the operation in errors.
    const NAME: &'static str;

    /// Returns the digest of the record that the step reads or writes.
    fn digest(&self) -> Digest;

    /// Runs `steps` as one batch, in one statement where the dialect can, and returns their answers in
    /// the same order.
    fn run(
        dialect: &D,
        connection: &mut D::Connection,
        steps: &[Self],
    ) -> impl Future<Output = Result<Vec<Result<Self::Answer>>>> + Send;
}

impl<D: Dialect> Step<D> for Draft {
    type Answer = Opened;
    const NAME: &'static str = "open";

    fn digest(&self) -> Digest {
        self.key.digest()
    }

    fn run(
        dialect: &D,
        connection: &mut D::Connection,
        steps: &[Self],
    ) -> impl Future<Output = Result<Vec<Result<Opened>>>> + Send {
        dialect.open(connection, steps)
    }
}

impl<D: Dialect> Step<D> for SettleRequest {
    type Answer = Settled;
    const NAME: &'static str = "settle";

    fn digest(&self) -> Digest {
        self.lease.digest
    }

    fn run(
        dialect: &D,
        connection: &mut D::Connection,
        steps: &[Self],
    ) -> impl Future<Output = Result<Vec<Result<Settled>>>> + Send {
        dialect.settle(connection, steps)
    }
}

impl<D: Dialect> Step<D> for Digest {
    type Answer = Option<Peeked>;
    const NAME: &'static str = "peek";

    fn digest(&self) -> Digest {
        *self
    }

    fn run(
        dialect: &D,
        connection: &mut D::Connection,
        steps: &[Self],
    ) -> impl Future<Output = Result<Vec<Result<Option<Peeked>>>>> + Send {
        dialect.peek(connection, steps)
    }
}
