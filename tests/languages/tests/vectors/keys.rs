//! Vectors for keys, their principals, and ids of events that are derived from an operation.

use semel_core::key::{InvalidKey, Kind, Part};
use semel_core::{EventId as CoreEventId, Key as CoreKey, OperationId, Principal as CorePrincipal};
use serde::Serialize;

use crate::hex;

#[derive(Serialize)]
pub(crate) struct Principal {
    identity_hex: String,
    principal_hex: String,
}

#[derive(Serialize)]
pub(crate) struct Key {
    name: &'static str,
    kind: u8,
    tenant: String,
    scope: String,
    /// Empty: the principal that all callers share.
    principal_hex: String,
    id: String,
    digest_hex: String,
}

#[derive(Serialize)]
pub(crate) struct Refused {
    name: &'static str,
    tenant: String,
    scope: String,
    id: String,
    part: String,
    reason: &'static str,
    /// The byte offset of the control character; for a part that is too long, its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<usize>,
}

#[derive(Serialize)]
pub(crate) struct EventId {
    operation_id: String,
    name: &'static str,
    event_id: String,
}

/// The id of an event of another system.
#[derive(Serialize)]
pub(crate) struct ForeignEventId {
    source: &'static str,
    id: &'static str,
    event_id: String,
}

pub(crate) fn principals() -> Vec<Principal> {
    let identities: [&[u8]; 5] = [b"", b"user-1", b"user-2", "jos\u{e9}".as_bytes(), &[0, 255]];
    let principal = |identity: &[u8]| Principal {
        identity_hex: hex(identity),
        principal_hex: hex(CorePrincipal::of(identity).as_bytes()),
    };
    identities.into_iter().map(principal).collect()
}

fn key(
    name: &'static str,
    kind: Kind,
    [tenant, scope, id]: [&str; 3],
    principal: CorePrincipal,
) -> Key {
    let made = CoreKey::new(kind, tenant, scope, principal, id).expect("a valid key");
    Key {
        name,
        kind: kind.code(),
        tenant: tenant.to_owned(),
        scope: scope.to_owned(),
        principal_hex: hex(principal.as_bytes()),
        id: id.to_owned(),
        digest_hex: hex(made.digest().as_bytes()),
    }
}

pub(crate) fn keys() -> Vec<Key> {
    let global = CorePrincipal::global();
    let command = |name, parts| key(name, Kind::Command, parts, global);
    let (tenant, scope, id) = ("t".repeat(64), "s".repeat(128), "i".repeat(255));
    let mut keys = vec![
        command("plain", ["acme", "CreateOrder", "8e03978e-40d5-43dd-bc93-6894a57f9324"]),
        command("one byte each", ["t", "s", "i"]),
        command("another split of the same bytes", ["ts", "i", "i"]),
        command("upper case is another key", ["T", "s", "i"]),
        command("a trailing space is another key", ["t", "s", "i "]),
        command("longest parts", [&tenant, &scope, &id]),
        command("composed", ["acme", "PAY", "caf\u{e9}"]),
        command("decomposed is another key", ["acme", "PAY", "cafe\u{301}"]),
        command("beyond the basic plane", ["acme", "PAY", "\u{1f4b6}\u{10ffff}"]),
        command(
            "255 bytes of two-byte characters and one more",
            ["\u{79df}\u{6237}", "\u{4e0b}\u{5355}", &format!("{}x", "\u{e9}".repeat(127))],
        ),
        command("no-break space inside", ["acme", "PAY", "a\u{a0}b"]),
        command("not control characters", ["acme", "PAY", "\u{2028}\u{200b}\u{feff}"]),
        key("with a principal", Kind::Command, ["t", "s", "i"], CorePrincipal::of("user-1")),
        key(
            "with the principal of no bytes",
            Kind::Command,
            ["t", "s", "i"],
            CorePrincipal::of(""),
        ),
    ];
    let kinds = [
        ("an HTTP request", Kind::Http),
        ("a gRPC call", Kind::Grpc),
        ("a message", Kind::Message),
        ("an event", Kind::Event),
    ];
    keys.extend(kinds.map(|(name, kind)| key(name, kind, ["t", "s", "i"], global)));
    keys
}

pub(crate) fn refused() -> Vec<Refused> {
    let long = |count: usize| "x".repeat(count);
    let cases: Vec<(&'static str, [String; 3])> = vec![
        ("an empty tenant", ["".into(), "s".into(), "i".into()]),
        ("an empty scope", ["t".into(), "".into(), "i".into()]),
        ("an empty id", ["t".into(), "s".into(), "".into()]),
        ("a space", ["t".into(), "s".into(), " ".into()]),
        ("white space of Unicode", ["t".into(), "\u{3000}\u{2009}\u{a0} ".into(), "i".into()]),
        ("a tab is blank before it is a control character", ["t".into(), "s".into(), "\t".into()]),
        ("next line is blank", ["t".into(), "s".into(), "\u{85}".into()]),
        ("65 bytes", [long(65), "s".into(), "i".into()]),
        ("129 bytes", ["t".into(), long(129), "i".into()]),
        ("256 bytes", ["t".into(), "s".into(), long(256)]),
        ("128 characters of two bytes", ["t".into(), "s".into(), "\u{e9}".repeat(128)]),
        (
            "length is checked before control characters",
            ["t".into(), "s".into(), format!("\0{}", long(255))],
        ),
        ("NUL", ["t".into(), "s".into(), "a\0b".into()]),
        ("a line feed after two bytes", ["t".into(), "s".into(), "\u{e9}\n".into()]),
        ("delete", ["t".into(), "s".into(), "a\u{7f}".into()]),
        ("a control character of the second block", ["t".into(), "s".into(), "a\u{9f}".into()]),
        ("a separator, which is no white space", ["t".into(), "s".into(), "\u{1c}".into()]),
    ];
    cases.into_iter().map(|(name, parts)| refuse(name, parts)).collect()
}

fn refuse(name: &'static str, [tenant, scope, id]: [String; 3]) -> Refused {
    let (part, reason, at) = match CoreKey::command(&tenant, &scope, &id).expect_err(name) {
        InvalidKey::Blank(part) => (part, "blank", None),
        InvalidKey::TooLong { part, len, .. } => (part, "too_long", Some(len)),
        InvalidKey::Control { part, at } => (part, "control", Some(at)),
    };
    let part: Part = part;
    Refused { name, tenant, scope, id, part: part.to_string(), reason, at }
}

pub(crate) fn event_ids() -> Vec<EventId> {
    let operations: [u128; 3] = [0, 0x0156_3df3_6481_d676_4c61_efb9_9302_bd5b, u128::MAX];
    let names = ["order.placed", "order.paid", "", "\u{8ba2}\u{5355}"];
    let pairs = operations.into_iter().flat_map(|operation| names.map(|name| (operation, name)));
    pairs
        .map(|(operation, name)| {
            let operation = OperationId::from_bytes(&operation.to_be_bytes()).expect("16 bytes");
            let event_id = CoreEventId::derived(operation, name).to_string();
            EventId { operation_id: operation.to_string(), name, event_id }
        })
        .collect()
}

pub(crate) fn foreign_event_ids() -> Vec<ForeignEventId> {
    let ids = ["1", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav", "\u{8ba2}-7"];
    let pairs = ["/orders", "/orders1"].into_iter().flat_map(|source| ids.map(|id| (source, id)));
    let foreign = |(source, id)| {
        let event_id = CoreEventId::foreign(source, id).to_string();
        ForeignEventId { source, id, event_id }
    };
    pairs.map(foreign).collect()
}
