//! The settings of outbound calls, as a layer.

use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

use super::dialect::Dialect;
use super::retry::Backoff;
use super::service::Call;
use super::settings::Settings;

/// The upper bound of every duration setting: longer than any call, and short enough to be added to
/// an `Instant` without overflow.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A layer that gives outbound calls an idempotency key and retries them where that is safe. See
/// the [module](super).
///
/// ```
/// use std::time::Duration;
/// use semel_tower::client::{CallLayer, Dialect};
///
/// let layer = CallLayer::new(Dialect::stripe()).tries(3).try_timeout(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CallLayer(Arc<Settings>);

impl CallLayer {
    /// Creates a layer for a provider of this dialect, with the defaults.
    pub fn new(dialect: Dialect) -> Self {
        Self(Arc::new(Settings {
            dialect,
            fresh: true,
            tries: 4,
            budget: Duration::from_secs(30),
            try_timeout: Duration::from_secs(10),
            backoff: Backoff { first: Duration::from_millis(200), most: Duration::from_secs(5) },
            longest_retry_after: Duration::from_secs(30),
            read_ahead: 64 * 1024,
        }))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets whether a call without a key gets a fresh one where the dialect
    /// [covers](Dialect::covers) its method. Default yes; without a key such a call is tried once.
    pub fn fresh_keys(self, fresh: bool) -> Self {
        self.set(|settings| settings.fresh = fresh)
    }

    /// Sets the largest number of tries, including the first. Default 4.
    pub fn tries(self, tries: u32) -> Self {
        self.set(|settings| settings.tries = tries.max(1))
    }

    /// Sets how long all tries and the waits between them may take. Default 30 s.
    pub fn budget(self, budget: Duration) -> Self {
        self.set(|settings| settings.budget = budget.min(FOR_EVER))
    }

    /// Sets how long one try may take, until its response begins (or, if it is
    /// [read ahead](Self::read_ahead), ends). Default 10 s.
    pub fn try_timeout(self, limit: Duration) -> Self {
        self.set(|settings| settings.try_timeout = limit.min(FOR_EVER))
    }

    /// Sets the wait before a retry where the response has no `Retry-After`: a random time of up to
    /// `first`, which doubles with every try, up to `most`. Default 200 ms and 5 s.
    pub fn backoff(self, first: Duration, most: Duration) -> Self {
        self.set(|settings| settings.backoff = Backoff { first, most: most.max(first) })
    }

    /// Sets the longest wait that a response may ask for with `Retry-After`. A response that asks
    /// for a longer wait, or for more than is left of the budget, is returned to the caller.
    /// Default 30 s. No retry is sent earlier than `Retry-After` asks.
    pub fn longest_retry_after(self, longest: Duration) -> Self {
        self.set(|settings| settings.longest_retry_after = longest.min(FOR_EVER))
    }

    /// Sets how many bytes of a response are read within its try, if the response is known to be
    /// that small or is JSON: a response that breaks off before its end is tried again. The same
    /// number of bytes is drained from a response that is dropped for a retry, so that its
    /// connection can be used again. Default 64 KiB; 0 returns every response as soon as its
    /// headers have arrived.
    pub fn read_ahead(self, bytes: usize) -> Self {
        self.set(|settings| settings.read_ahead = bytes)
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = Call<S>;

    fn layer(&self, inner: S) -> Call<S> {
        Call::new(inner, Arc::clone(&self.0))
    }
}
