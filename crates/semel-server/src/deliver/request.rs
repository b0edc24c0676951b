//! What is sent for an event: CloudEvents 1.0 over HTTP in binary mode, with the headers of Standard Webhooks and
//! an idempotency key.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};
use semel_core::Event;

use super::signature::Signer;

/// What endpoints see of this program.
const AGENT: &str = concat!("semel-deliver/", env!("CARGO_PKG_VERSION"));

/// Returns the id of the message: the event's id, and a part for the tenant, because events of two tenants may
/// have one id.
pub(super) fn message_id(event: &Event) -> String {
    let tenant = digest(&SHA256, event.tenant().as_bytes());
    let mut id = format!("{}_", event.id());
    for byte in &tenant.as_ref()[..6] {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Returns the headers of the request for an event that is sent at `timestamp`.
pub(super) fn headers(event: &Event, group: &str, signer: &Signer, timestamp: i64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    };
    for (name, value) in event.cloud_attributes() {
        match name {
            "datacontenttype" => set("content-type", &value),
            // Trace context has its own headers, too.
            "traceparent" | "tracestate" => {
                set(name, &value);
                set(&format!("ce-{name}"), &encoded(&value));
            }
            name => set(&format!("ce-{name}"), &encoded(&value)),
        }
    }
    let id = message_id(event);
    set("user-agent", AGENT);
    set("webhook-id", &id);
    set("webhook-timestamp", &timestamp.to_string());
    set("webhook-signature", &signer.sign(&id, timestamp, event.payload()));
    set("idempotency-key", &format!("{group}:{id}"));
    headers
}

/// Encodes a value as the HTTP binding of CloudEvents requires: what is not visible ASCII, spaces, quotes and
/// percent signs as percent-encoded UTF-8.
fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => drop(write!(text, "%{byte:02X}")),
            0x21..=0x7e => text.push(char::from(byte)),
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ServerSettings;

    #[test]
    fn every_attribute_is_a_header_and_ids_are_stable_and_of_one_tenant() {
        let text = "[[subscription]]\ngroup = \"SHIPPING\"\nurl = \"https://x.example\"\n\
                    secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"";
        let settings = ServerSettings::parse(text).unwrap();
        let signer = Signer::new(&settings.subscription[0]).unwrap();
        let event = |tenant: &str| {
            let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
            let builder = Event::builder(tenant, "order.paid", "/orders").id(id);
            let builder = builder.about("order", "Euro € \"5\" 100%").attribute("region", "eu");
            builder.json(&7).build().unwrap().with_sequence(9)
        };
        let sent = headers(&event("acme"), "SHIPPING", &signer, 1_700_000_000);
        let header = |name: &str| sent.get(name).and_then(|value| value.to_str().ok()).unwrap();
        for (name, value) in [
            ("content-type", "application/json"),
            ("ce-specversion", "1.0"),
            ("ce-id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
            ("ce-type", "order.paid"),
            ("ce-source", "/orders"),
            ("ce-tenantid", "acme"),
            ("ce-subject", "Euro%20%E2%82%AC%20%225%22%20100%25"),
            ("ce-sequence", "00000000000000000009"),
            ("ce-region", "eu"),
            ("webhook-timestamp", "1700000000"),
        ] {
            assert_eq!(header(name), value, "{name}");
        }
        let id = header("webhook-id");
        assert!(id.starts_with("01ARZ3NDEKTSV4RRFFQ69G5FAV_"), "{id}");
        assert_eq!(header("idempotency-key"), format!("SHIPPING:{id}"));
        assert_eq!(id, message_id(&event("acme")));
        assert_ne!(id, message_id(&event("other")));
        assert!(!sent.contains_key("ce-datacontenttype"));
    }
}
