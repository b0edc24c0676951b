//! The table of all kinds of problems. Each kind has a page in `docs/errors/`.

use http::StatusCode;

/// The fixed properties of a kind of problem.
pub(super) struct Facts {
    pub(super) slug: &'static str,
    pub(super) title: &'static str,
    pub(super) status: StatusCode,
    /// Whether the same request with the same key may succeed later.
    pub(super) retryable: bool,
    /// Whether a retry with a new key is safe, because it cannot take effect twice.
    pub(super) safe_new_key: bool,
}

macro_rules! slugs {
    ($($name:ident $slug:literal $status:ident $retryable:ident $safe_new_key:ident $title:literal)*) => {
        /// A kind of problem. The slug of a kind never changes; its page is
        /// `docs/errors/<slug>.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Slug {
            $(#[doc = concat!($title, ".")] $name,)*
        }

        impl Slug {
            /// All kinds of problems.
            pub const ALL: &[Slug] = &[$(Slug::$name),*];

            pub(super) fn facts(self) -> Facts {
                match self {
                    $(Slug::$name => Facts {
                        slug: $slug,
                        title: $title,
                        status: StatusCode::$status,
                        retryable: $retryable,
                        safe_new_key: $safe_new_key,
                    },)*
                }
            }
        }
    };
}

// Short names for the columns of the table.
const RETRY: bool = true;
const NEW_KEY: bool = true;
const NO: bool = false;

slugs! {
    KeyMissing        "key-missing"        BAD_REQUEST           NO    NEW_KEY "This route needs an Idempotency-Key"
    KeyInvalid        "key-invalid"        BAD_REQUEST           NO    NEW_KEY "The Idempotency-Key cannot be read"
    KeyReused         "key-reused"         UNPROCESSABLE_ENTITY  NO    NO      "The key was used for a different request"
    InProgress        "in-progress"        CONFLICT              RETRY NO      "A request with this key is still running"
    BackingOff        "backing-off"        CONFLICT              RETRY NO      "The last attempt failed, and the next one is not due yet"
    Failed            "failed"             CONFLICT              NO    NO      "The operation failed"
    Dead              "dead"               CONFLICT              NO    NO      "The operation was given up"
    Uncertain         "uncertain"          CONFLICT              NO    NO      "It is not known whether the operation happened"
    ClaimLost         "claim-lost"         CONFLICT              RETRY NO      "Another attempt took over while this one ran"
    ResultUnavailable "result-unavailable" CONFLICT              NO    NO      "The operation is done, but its answer was not stored"
    ResultTooLarge    "result-too-large"   INTERNAL_SERVER_ERROR NO    NO      "The answer is too large to store, and nothing was committed"
    BodyTooLarge      "body-too-large"     PAYLOAD_TOO_LARGE     NO    NEW_KEY "The request body is too large"
    BodyIncomplete    "body-incomplete"    BAD_REQUEST           RETRY NO      "The request body broke off"
    BodyTimeout       "body-timeout"       REQUEST_TIMEOUT       RETRY NO      "The request body took too long"
    TenantUnknown     "tenant-unknown"     UNAUTHORIZED          NO    NO      "The tenant is unknown"
    PrincipalUnknown  "principal-unknown"  UNAUTHORIZED          NO    NO      "The caller is unknown"
    ReplayRefused     "replay-refused"     FORBIDDEN             NO    NO      "This caller may not read the answer of this operation"
    WorkFailed        "work-failed"        INTERNAL_SERVER_ERROR RETRY NO      "The service failed while it ran the request"
    WorkTimeout       "work-timeout"       GATEWAY_TIMEOUT       RETRY NO      "The request took too long and was cancelled"
    UpstreamUnreachable "upstream-unreachable" BAD_GATEWAY       RETRY NO      "The service behind the gateway cannot be reached, and nothing was sent to it"
    UpstreamAmbiguous "upstream-ambiguous" GATEWAY_TIMEOUT       RETRY NO      "The service behind the gateway got the request and did not answer"
    Overloaded        "overloaded"         SERVICE_UNAVAILABLE   RETRY NO      "The gateway is overloaded, and nothing was sent"
    StoreFull         "store-full"         SERVICE_UNAVAILABLE   RETRY NO      "The ledger is full, and nothing ran"
    StoreUnavailable  "store-unavailable"  SERVICE_UNAVAILABLE   RETRY NO      "The ledger cannot be reached"
    ShuttingDown      "shutting-down"      SERVICE_UNAVAILABLE   RETRY NO      "The service is shutting down"
    Misconfigured     "misconfigured"      INTERNAL_SERVER_ERROR NO    NO      "The route's settings cannot work"
    OperationUnknown  "operation-unknown"  NOT_FOUND             NO    NO      "The operation does not exist"
    PublicIdInvalid   "public-id-invalid"  BAD_REQUEST           NO    NO      "A parameter is not a valid public id of its type"
    PublicIdNotFound  "public-id-not-found" NOT_FOUND            NO    NO      "No resource has this public id"
}

impl Slug {
    /// Returns the slug, which is the last part of the problem's type: `key-reused`.
    pub fn as_str(self) -> &'static str {
        self.facts().slug
    }

    /// Returns the slug as a constant: `KEY_REUSED`. The two kinds for public ids have other
    /// constants, which their clients expect: `INVALID_PARAM` and `NOT_FOUND`.
    pub fn code(self) -> String {
        let known =
            [(Slug::PublicIdInvalid, "INVALID_PARAM"), (Slug::PublicIdNotFound, "NOT_FOUND")];
        if let Some((_, code)) = known.iter().find(|(slug, _)| *slug == self) {
            return (*code).to_owned();
        }
        self.as_str().to_ascii_uppercase().replace('-', "_")
    }

    /// Returns the title of the problem, one sentence.
    pub fn title(self) -> &'static str {
        self.facts().title
    }

    /// Returns the default HTTP status of the problem.
    pub fn status(self) -> StatusCode {
        self.facts().status
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;

    fn page(name: &str) -> String {
        let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        std::fs::read_to_string(pages.join(format!("{name}.md"))).unwrap_or_default()
    }

    #[test]
    fn the_example_on_every_page_matches_the_table() {
        for slug in Slug::ALL {
            let (name, page) = (slug.as_str(), page(slug.as_str()));
            let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
            let example: Value = serde_json::from_str(example.expect(name)).expect(name);
            let Facts { title, status, retryable, safe_new_key, .. } = slug.facts();
            assert!(page.starts_with(&format!("# {title}\n")), "{name}");
            assert_eq!(example["type"], format!("urn:semel:problem:{name}"));
            assert_eq!(example["title"], title, "{name}");
            assert_eq!(example["status"], status.as_u16(), "{name}");
            assert_eq!(example["code"], slug.code());
            let advice = json!([example["retryable"], example["safe_new_key"]]);
            assert_eq!(advice, json!([retryable, safe_new_key]), "{name}");
            let new_key = if safe_new_key { "New key: safe." } else { "New key: not safe." };
            assert!(page.contains(new_key), "{name}: {new_key}");
        }
    }

    #[test]
    fn the_index_of_pages_has_every_problem_with_its_status() {
        let index = page("README");
        for slug in Slug::ALL {
            let (name, status, title) = (slug.as_str(), slug.status().as_u16(), slug.title());
            let row = format!("| [`{name}`]({name}.md) | {status} | {title} |");
            assert!(index.contains(&row), "{row}");
        }
    }
}
