//! The path or query parameter of a request that holds public ids.

use std::borrow::Cow;
use std::marker::PhantomData;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts as _, RawPathParams};
use http::request::Parts;
use percent_encoding::percent_decode_str;
use semel_ids::Resource;
use semel_ids::resource::MAX_TYPE;

/// The name of the parameter that holds a public id. Implement this trait for routes whose
/// parameter is not named after its resource, and for routes with two ids of one resource type.
///
/// ```
/// use semel_ids::resource::User;
/// use semel_tower::axum::ids::{InternalId, Parameter};
///
/// enum Buyer {}
/// impl Parameter for Buyer {
///     const NAME: &'static str = "buyer_id";
/// }
///
/// enum Seller {}
/// impl Parameter for Seller {
///     const NAME: &'static str = "seller_id";
/// }
///
/// // GET /deals/{buyer_id}/{seller_id}, or GET /deals?buyer_id=usr_…&seller_id=usr_…
/// async fn deals(buyer: InternalId<User, Buyer>, seller: InternalId<User, Seller>) -> String {
///     format!("between {} and {}", buyer.id, seller.id)
/// }
/// ```
pub trait Parameter: Send + Sync + 'static {
    /// The name of the parameter.
    const NAME: &'static str;
}

/// The default parameter, which is named after the resource: `order_id` for `ORDER`.
pub struct ResourceParameter<R>(PhantomData<fn() -> R>);

impl<R> std::fmt::Debug for ResourceParameter<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResourceParameter")
    }
}

const SUFFIX: &[u8] = b"_id";

impl<R: Resource> ResourceParameter<R> {
    const LEN: usize = R::TYPE.name().len() + SUFFIX.len();

    const TEXT: [u8; MAX_TYPE + SUFFIX.len()] = {
        let mut text = [0; MAX_TYPE + SUFFIX.len()];
        let name = R::TYPE;
        let name = name.name().as_bytes();
        let mut at = 0;
        while at < Self::LEN {
            text[at] = if at < name.len() {
                name[at].to_ascii_lowercase()
            } else {
                SUFFIX[at - name.len()]
            };
            at += 1;
        }
        text
    };
}

impl<R: Resource> Parameter for ResourceParameter<R> {
    const NAME: &'static str = match std::str::from_utf8(Self::TEXT.split_at(Self::LEN).0) {
        Ok(name) => name,
        Err(_) => panic!("a type's name is ASCII"),
    };
}

/// Returns all values of the parameter `name`: those in the path or, if there are none, those in
/// the query.
pub(super) async fn values<T: Send + Sync>(
    parts: &mut Parts,
    state: &T,
    name: &str,
) -> Vec<String> {
    match RawPathParams::from_request_parts(parts, state).await {
        Ok(path) => {
            let found = path.iter().filter(|(key, _)| *key == name);
            let found: Vec<String> = found.map(|(_, value)| value.into()).collect();
            if !found.is_empty() {
                return found;
            }
        }
        // Returns a text that cannot be an id: the query must not replace a malformed value in the
        // path.
        Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
            return vec![char::REPLACEMENT_CHARACTER.into()];
        }
        // No route has matched, so the path has no parameters.
        Err(_) => {}
    }
    in_query(parts.uri.query().unwrap_or_default(), name)
}

fn in_query(query: &str, name: &str) -> Vec<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let named = pairs.filter(|(key, _)| decoded(key) == name);
    named.map(|(_, value)| decoded(value).into_owned()).collect()
}

/// Decodes a part of a query that is encoded like an HTML form. Invalid UTF-8 becomes a text that
/// cannot be an id.
fn decoded(part: &str) -> Cow<'_, str> {
    if !part.contains('+') {
        return percent_decode_str(part).decode_utf8_lossy();
    }
    let spaced = part.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use semel_ids::ResourceType;
    use semel_ids::resource::{Order, Sku};

    use super::*;

    enum Long {}

    impl Resource for Long {
        const TYPE: ResourceType = ResourceType::new("WALLET_ACCOUNT_2", "wac");
    }

    #[test]
    fn a_parameter_is_named_after_its_resource() {
        assert_eq!(ResourceParameter::<Order>::NAME, "order_id");
        assert_eq!(ResourceParameter::<Sku>::NAME, "sku_id");
        assert_eq!(ResourceParameter::<Long>::NAME, "wallet_account_2_id");
    }

    #[test]
    fn a_query_is_decoded_like_a_form() {
        let found = |query| in_query(query, "order_id");
        assert_eq!(found("a=1&order_id=ord_1&b"), ["ord_1"]);
        assert_eq!(found("order%5fid=ord%5F1%2Cord_2"), ["ord_1,ord_2"]);
        assert_eq!(found("order_id=a&order_id=b+c&order_id"), ["a", "b c", ""]);
        assert_eq!(found("order_id=%ff"), ["\u{fffd}"]);
        assert!(found("").is_empty() && found("Order_id=a&order_ids=b").is_empty());
    }
}
