//! Moves stored times, so that tests need not wait.

use std::time::Duration;

use redis::Value;
use semel_core::clock::micros;
use semel_core::store::Result;

use crate::error::Effect;
use crate::script::{self, Call};
use crate::store::RedisStore;

impl RedisStore {
    /// Moves every stored time of this prefix back by `span`, as if so much time had passed.
    /// Returns the number of records.
    ///
    /// # Errors
    /// As the store's own verbs.
    pub async fn rewind(&self, span: Duration) -> Result<u32> {
        self.shift(micros(span)).await
    }

    /// Moves every stored time of this prefix ahead by `span`, as if the server's clock had been set back.
    ///
    /// # Errors
    /// As the store's own verbs.
    pub async fn set_back(&self, span: Duration) -> Result<u32> {
        self.shift(-micros(span)).await
    }

    async fn shift(&self, span: i64) -> Result<u32> {
        let span = span.to_string();
        let mut count = 0;
        for key in crate::walk::names(self).await? {
            let call = Call { script: &script::REWIND, key: &key, args: &[span.as_bytes()] };
            let answered = self.transport.call(&call).await;
            match answered.map_err(|failure| failure.during("rewind", Effect::Writes))?
                == Value::Int(1)
            {
                true => count += 1,
                false => tracing::warn!("skipped an unreadable record"),
            }
        }
        Ok(count)
    }
}
