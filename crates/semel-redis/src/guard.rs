//! The conditions under which a script writes, unless a test took them away.

use semel_core::{Lease, Version};

use crate::layout::Guard;

/// Returns the condition of a settling or renewing write.
pub(crate) fn lease_guard(lease: &Lease) -> Guard {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Fence) {
        return Guard::none();
    }
    Guard::lease(lease)
}

/// Returns the condition of a write over a judged record.
pub(crate) fn version_guard(version: Version) -> Guard {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Version) {
        return Guard::none();
    }
    Guard::version(version)
}
