//! `[gateway]` and `[[route]]`.

use serde::Deserialize;

/// `[gateway]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gateway {}

/// One `[[route]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {}
