//! The conditions under which a script writes, unless a test has disabled them.

use semel_core::{Lease, Version};

use crate::layout::Guard;

/// Returns the condition of a write that settles or renews a claim.
pub(crate) fn lease_guard(lease: &Lease) -> Guard {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Fence) {
        return Guard::none();
    }
    Guard::lease(lease)
}

/// Returns the condition of a write on a judged version.
pub(crate) fn version_guard(version: Version) -> Guard {
    #[cfg(feature = "testing")]
    if semel_core::testing::sabotaged(semel_core::testing::Guard::Version) {
        return Guard::none();
    }
    Guard::version(version)
}
