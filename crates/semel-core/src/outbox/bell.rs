//! Wakes the relays of this process.

use std::sync::Arc;

use tokio::sync::Notify;

/// Rung after a commit that appended events. Cheap to clone. Rings are not counted: one claim finds all rows.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Wakes a relay that waits, or the next one that does.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Completes when the bell is rung, or was since this last completed.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}
