//! Converts events to NATS messages and back: writes CloudEvents in binary mode, reads both modes.
//!
//! A header's value is printable ASCII; blanks, quotes, percent signs and everything else are
//! percent-encoded, as in the CloudEvents bindings.

use std::borrow::Cow;
use std::collections::BTreeMap;

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use semel_core::event::{BinaryMessage, Event, Unreadable};

const PREFIX: &str = "ce-";
const CONTENT_TYPE: &str = "content-type";
/// The prefix of headers that the server reads or adds.
const SERVERS_OWN: &str = "nats-";
/// The beginning of the content types of structured mode.
const STRUCTURED: &str = "application/cloudevents";

const VALUE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Returns the headers of an event that is published to `stream`.
pub(crate) fn headers(event: &Event, stream: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in event.cloud_attributes() {
        headers.insert(format!("{PREFIX}{name}"), encoded(&value));
    }
    // The id by which the server recognises a repeat must be unique in the whole stream, so it
    // contains the tenant too.
    let id = format!("{}/{}", encoded(event.tenant()), event.id());
    headers.insert(NATS_MESSAGE_ID, id);
    // If the subject belongs to another stream, the event is refused instead of being stored there.
    headers.insert(NATS_EXPECTED_STREAM, stream);
    headers
}

/// Reads the event in a message.
pub(crate) fn read(
    headers: Option<&HeaderMap>,
    payload: &Bytes,
    tenant: Option<&str>,
) -> Result<Event, Unreadable> {
    let (mut attributes, mut beside) = (BTreeMap::new(), BTreeMap::new());
    let mut content_type = None;
    for (given, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let (name, Some(value)) = (given.to_string().to_ascii_lowercase(), values.last()) else {
            continue;
        };
        if name == CONTENT_TYPE {
            content_type = Some(Cow::Borrowed(value.as_str()));
        } else if let Some(attribute) = name.strip_prefix(PREFIX) {
            attributes.insert(Cow::from(attribute.to_owned()), decoded(value.as_str()));
        } else if !name.starts_with(SERVERS_OWN) {
            beside.insert(Cow::from(given.to_string()), Cow::Borrowed(value.as_str()));
        }
    }
    let structured = content_type.as_ref().is_some_and(|kind| {
        kind.get(..STRUCTURED.len()).is_some_and(|start| start.eq_ignore_ascii_case(STRUCTURED))
    });
    // Without any attribute in the headers, the event can only be in the payload.
    if structured || attributes.is_empty() {
        return Event::from_json(payload, tenant);
    }
    Event::from_cloud(BinaryMessage {
        attributes,
        headers: beside,
        content_type,
        payload: payload.clone(),
        tenant: tenant.map(Cow::Borrowed),
    })
}

fn encoded(value: &str) -> String {
    utf8_percent_encode(value, VALUE).to_string()
}

/// Decodes percent-encoding. A value that is not UTF-8 after decoding was never encoded, and is
/// returned unchanged.
fn decoded(value: &str) -> Cow<'_, str> {
    percent_decode_str(value).decode_utf8().unwrap_or(Cow::Borrowed(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::builder("acme \"west\"", "order.placed", "/orders/ü 100%")
            .about("order", "№ 7 🎉%41\u{a0}")
            .payload("text/plain; charset=\"utf-8\"", "100 %")
            .attribute("note", "  50% off 🎉 ")
            .header("traceId", "0af7 🎉\r\n\"x\" 50%")
            .build()
            .expect("an event")
            .with_sequence(7)
    }

    #[test]
    fn an_event_reads_back_from_its_headers() {
        let event = event();
        let headers = headers(&event, "EVENTS");
        for (name, values) in headers.iter() {
            for value in values {
                let plain = value.as_str().bytes().all(|byte| (0x21..0x7f).contains(&byte));
                assert!(plain, "{name}: {value:?}");
            }
        }
        assert_eq!(read(Some(&headers), event.payload(), None), Ok(event));
    }

    #[test]
    fn the_same_id_of_two_tenants_is_two_messages() {
        let of = |tenant: &str| {
            let event = Event::builder(tenant, "t", "/s").id(event().id()).build().unwrap();
            headers(&event, "EVENTS").get(NATS_MESSAGE_ID).unwrap().to_string()
        };
        assert_ne!(of("a"), of("b"));
        assert_eq!(of("a b").matches(' ').count(), 0);
    }

    #[test]
    fn headers_of_other_publishers_are_read_in_any_case() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("Ce-SpecVersion", "1.0"),
            ("CE-ID", "17"),
            ("ce-source", "/st%C3%B6re"),
            ("ce-type", "100%"),
            ("ce-tenantid", "%FF"),
            ("Content-Type", "text/csv"),
            ("traceId", "t 1%41"),
            ("Nats-Msg-Id", "17"),
        ] {
            headers.insert(name, value);
        }
        let event = read(Some(&headers), &Bytes::from_static(b"a;b"), None).expect("an event");
        assert_eq!((event.source(), event.kind()), ("/störe", "100%"));
        assert_eq!((event.tenant(), event.content_type()), ("%FF", "text/csv"));
        assert_eq!(event.headers_json(), Some(r#"{"traceId":"t 1%41"}"#));
    }

    #[test]
    fn structured_mode_is_read_with_and_without_its_content_type() {
        let event = event();
        let document = Bytes::from(event.to_json());
        assert_eq!(read(None, &document, None), Ok(event.clone()));
        let mut headers = HeaderMap::new();
        headers.insert("Content-Type", "application/CloudEvents+json; charset=utf-8");
        headers.insert("ce-id", "of the message");
        assert_eq!(read(Some(&headers), &document, None), Ok(event));
        let nothing = read(None, &Bytes::from_static(b"hello"), None);
        assert!(matches!(nothing, Err(Unreadable::Document(_))), "{nothing:?}");
    }
}
