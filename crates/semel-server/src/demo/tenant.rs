//! The tenant of a request, as its header names it. A demonstration trusts its callers.

use http::HeaderName;
use semel_tower::Tenant;

/// The header that names the tenant.
pub(super) const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// Returns how the layers and the extractors of ids find a request's tenant.
pub(super) fn tenant() -> Tenant {
    Tenant::header(TENANT)
}
