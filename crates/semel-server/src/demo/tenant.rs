//! The tenant of a request, which is in its header. The demo trusts its callers.

use http::HeaderName;
use semel_tower::Tenant;

/// The header that contains the tenant.
pub(super) const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// Returns the rule by which the layers and the extractors of ids find the tenant of a request.
pub(super) fn tenant() -> Tenant {
    Tenant::header(TENANT)
}
