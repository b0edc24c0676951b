//! Converts events to AMQP messages and back: writes CloudEvents in binary mode, and also reads
//! structured mode.
//!
//! The publisher decides where a message goes, the inbox whether it was handled before.

use std::borrow::Cow;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use semel_core::event::{BinaryMessage, Event, STRUCTURED, Unreadable};

/// The prefix of an attribute's header, as in the AMQP binding of CloudEvents.
const PREFIX: &str = "cloudEvents:";
/// The prefix for implementations that do not allow colons; only read.
const OTHER_PREFIX: &str = "cloudEvents_";
/// The beginning of both content types of structured mode.
const STRUCTURED_MEDIA: &str = "application/cloudevents";
const PERSISTENT: u8 = 2;

/// Headers that the broker adds or interprets. They are not sent again with a copy.
const BROKERS_OWN: [&str; 4] = ["CC", "BCC", "x-delivery-count", "x-acquired-count"];

/// Returns the properties of an event's message.
pub(crate) fn properties(event: &Event) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in event.cloud_attributes() {
        // The AMQP binding has a property of its own for the content type.
        if name != "datacontenttype" {
            let value = AMQPValue::LongString(value.into_owned().into());
            headers.insert(format!("{PREFIX}{name}").into(), value);
        }
    }
    let seconds = event.occurred_at().as_micros().max(0).unsigned_abs() / 1_000_000;
    BasicProperties::default()
        .with_content_type(event.content_type().into())
        .with_message_id(event.id().to_string().into())
        .with_timestamp(seconds)
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers)
}

/// Returns an upper bound for the size in bytes of the frame with an event's properties. That frame
/// cannot be split.
pub(crate) fn header_frame(event: &Event) -> usize {
    // Frame and content header, the flags, the other properties with their lengths, and the length
    // of the table.
    let fixed = 64 + event.content_type().len() + event.id().to_string().len();
    let one = |(name, value): &(&str, Cow<'_, str>)| PREFIX.len() + name.len() + value.len() + 6;
    event.cloud_attributes().iter().map(one).sum::<usize>() + fixed
}

/// Identifies an event in a returned message: its id and tenant.
pub(crate) type Mark = (String, String);

/// Returns the mark of an event.
pub(crate) fn mark(event: &Event) -> Mark {
    (event.id().to_string(), event.tenant().to_owned())
}

/// Returns the mark of a message that this crate published.
pub(crate) fn mark_in(properties: &BasicProperties) -> Mark {
    let id = properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
    let headers = properties.headers().as_ref();
    let tenant = headers.and_then(|all| all.inner().get("cloudEvents:tenantid")).and_then(text);
    (id, tenant.map(Cow::into_owned).unwrap_or_default())
}

/// Reads the event in a message; `tenant` is the tenant of events without one.
pub(crate) fn envelope(
    properties: &BasicProperties,
    payload: &Bytes,
    tenant: Option<&str>,
) -> Result<Event, Unreadable> {
    let content_type = properties.content_type().as_ref().map(ShortString::as_str);
    if let Some(given) = content_type
        && given.get(..STRUCTURED_MEDIA.len()).is_some_and(|it| {
            // This also matches the batch format, which is refused below.
            it.eq_ignore_ascii_case(STRUCTURED_MEDIA)
        })
    {
        let media = given.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case(STRUCTURED) {
            let why = format!("of the structured formats only {STRUCTURED} is read, not {media}");
            return Err(Unreadable::Document(why));
        }
        return Event::from_json(payload, tenant);
    }
    let mut carried = BinaryMessage {
        content_type: content_type.map(Cow::Borrowed),
        payload: payload.clone(),
        tenant: tenant.map(Cow::Borrowed),
        ..BinaryMessage::default()
    };
    for (name, value) in properties.headers().iter().flatten() {
        let name = name.as_str();
        let ours = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(OTHER_PREFIX));
        match (ours, text(value)) {
            (Some(name), Some(value)) => carried.attributes.insert(Cow::Borrowed(name), value),
            (None, Some(value)) if !is_brokers_own(name) => {
                carried.headers.insert(Cow::Borrowed(name), value)
            }
            _ => None,
        };
    }
    Event::from_cloud(carried)
}

/// Returns a header's value as CloudEvents writes it; `None` for a type that no attribute has, and
/// for text that is not UTF-8: a lossy conversion could make two different ids equal.
fn text(value: &AMQPValue) -> Option<Cow<'_, str>> {
    let written = match value {
        AMQPValue::LongString(text) => return utf8(text.as_bytes()),
        AMQPValue::ByteArray(bytes) => return utf8(bytes.as_slice()),
        AMQPValue::ShortString(text) => return Some(Cow::Borrowed(text.as_str())),
        AMQPValue::Boolean(it) => it.to_string(),
        AMQPValue::ShortShortInt(it) => it.to_string(),
        AMQPValue::ShortShortUInt(it) => it.to_string(),
        AMQPValue::ShortInt(it) => it.to_string(),
        AMQPValue::ShortUInt(it) => it.to_string(),
        AMQPValue::LongInt(it) => it.to_string(),
        AMQPValue::LongUInt(it) => it.to_string(),
        AMQPValue::LongLongInt(it) => it.to_string(),
        AMQPValue::Timestamp(seconds) => return moment(*seconds),
        AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::Void => return None,
    };
    Some(Cow::Owned(written))
}

fn utf8(bytes: &[u8]) -> Option<Cow<'_, str>> {
    std::str::from_utf8(bytes).ok().map(Cow::Borrowed)
}

/// Returns a timestamp as CloudEvents writes it.
fn moment(seconds: u64) -> Option<Cow<'static, str>> {
    let at = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(Cow::Owned(at.to_string()))
}

/// Returns the properties of a copy that is delivered again after `millis`.
pub(crate) fn again(properties: &BasicProperties, millis: u64) -> BasicProperties {
    // Without the user id: the broker closes a channel on which a message has the id of another
    // user.
    let mut copy = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_expiration(millis.to_string().into());
    if let Some(headers) = properties.headers() {
        let kept = headers.into_iter().filter(|(name, _)| !is_brokers_own(name.as_str()));
        let mut table = FieldTable::default();
        for (name, value) in kept {
            table.insert(name.clone(), value.clone());
        }
        copy = copy.with_headers(table);
    }
    if let Some(timestamp) = properties.timestamp() {
        copy = copy.with_timestamp(*timestamp);
    }
    for (_, value, with) in texts(properties) {
        if let Some(value) = value {
            copy = with(copy, value.clone());
        }
    }
    copy
}

type With = fn(BasicProperties, ShortString) -> BasicProperties;

/// Returns the sender's text properties, by their AMQP names.
fn texts(of: &BasicProperties) -> [(&'static str, &Option<ShortString>, With); 7] {
    [
        ("content-type", of.content_type(), BasicProperties::with_content_type),
        ("content-encoding", of.content_encoding(), BasicProperties::with_content_encoding),
        ("correlation-id", of.correlation_id(), BasicProperties::with_correlation_id),
        ("reply-to", of.reply_to(), BasicProperties::with_reply_to),
        ("message-id", of.message_id(), BasicProperties::with_message_id),
        ("type", of.kind(), BasicProperties::with_type),
        ("app-id", of.app_id(), BasicProperties::with_app_id),
    ]
}

/// Returns a message as its sender made it: a line `name: value` for each property and header, an
/// empty line, and the payload. It is the same for every delivery, because it omits what the broker
/// adds and what a copy in a retry queue does not have.
pub(crate) fn raw(properties: &BasicProperties, payload: &Bytes) -> Bytes {
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        lines.extend([&*shown(name.as_bytes()), ": ", value, "\n"]);
    };
    for (name, value, _) in texts(properties) {
        if let Some(value) = value {
            line(name, &shown(value.as_str().as_bytes()));
        }
    }
    if let Some(seconds) = properties.timestamp() {
        line("timestamp", &seconds.to_string());
    }
    for (name, value) in properties.headers().iter().flatten() {
        if is_brokers_own(name.as_str()) {
            continue;
        }
        let value = match (value, text(value)) {
            (AMQPValue::LongString(bytes), _) => shown(bytes.as_bytes()),
            (AMQPValue::ByteArray(bytes), _) => shown(bytes.as_slice()),
            (_, Some(text)) => shown(text.as_bytes()),
            (other, None) => shown(format!("{other:?}").as_bytes()),
        };
        line(name.as_str(), &value);
    }
    lines.push('\n');
    [lines.as_bytes(), payload].concat().into()
}

/// Escapes line ends and bytes that are not UTF-8, so that the text is one line and different bytes stay different.
fn shown(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\r' => shown.push_str("\\r"),
                other => shown.push(other),
            }
        }
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    shown
}

/// Returns whether a quorum queue has counted an earlier delivery of the message.
pub(crate) fn came_before(properties: &BasicProperties) -> bool {
    let headers = properties.headers().as_ref();
    let count = headers.and_then(|all| all.inner().get("x-delivery-count")).and_then(text);
    count.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0))
}

fn is_brokers_own(name: &str) -> bool {
    BROKERS_OWN.contains(&name)
        || ["x-death", "x-first-death-", "x-last-death-"].iter().any(|it| name.starts_with(it))
}

#[cfg(test)]
mod tests;
