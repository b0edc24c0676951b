//! Wakes the relays of this process.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes a relay after a commit that appended events. Cheap to clone. Rings are not counted, since
/// one claim finds all rows.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Wakes a relay that waits for the bell, or the next relay that will wait.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Completes when the bell is rung, or at once if it was rung since the last completion.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}
