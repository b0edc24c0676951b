//! Tells a relay of this process that there may be something to do.

use std::sync::Arc;

use tokio::sync::Notify;

/// Rung after a commit that appended. Cheap to clone; rings are not counted: one look finds all.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Wakes whoever listens, or the next one who does.
    pub fn ring(&self) {
        self.0.notify_one();
    }

    /// Ends when it was rung since the last time that this ended.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}
