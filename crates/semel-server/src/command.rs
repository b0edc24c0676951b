//! What operators do by hand.
//!
//! Each command opens a store as it is, does one thing and says what it did; `shown` prints.

pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod ids;
pub(crate) mod inbox;
pub(crate) mod map;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod records;
pub(crate) mod sweep;
