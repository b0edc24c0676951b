//! Tests any outbox with rows that other programs wrote: six columns are all that an INSERT gives,
//! the rows share their partitions with appended events, and rows that are no events are buried.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::EventId;
use semel_core::event::Event;
use semel_core::outbox::{
    ClaimRequest, Disposition, Outbox, PublishError, Publisher, Relay, RowAction, Selection, Status,
};
use semel_testkit::OutboxFixture;

use super::crowd::{about, put};

/// A fixture in whose database another program runs statements.
pub(crate) trait StrangerFixture: OutboxFixture {
    /// Runs statements as another program; an error is the database's message.
    async fn execute(&self, sql: &str) -> Result<(), String>;
}

const SIX: &str =
    "INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, payload) VALUES";

const UUID: &str = "018f3c2e-7c1a-7d4b-9a5e-3f2b1c0d9e8f";

/// Returns the statement that writes an event about an order, with literals.
pub(crate) fn insert(id: &str, order: &str, payload: &str) -> String {
    format!("{SIX} ('{id}', 'acme', 'order', '{order}', 'order.placed', '{payload}')")
}

fn ask(limit: u32) -> ClaimRequest {
    ClaimRequest::new(limit, Duration::from_secs(600))
}

/// Publishes to a list.
#[derive(Clone, Default)]
pub(crate) struct Published(Arc<Mutex<Vec<Event>>>);

impl Published {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().expect("sound").clone()
    }
}

impl Publisher for Published {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        self.0.lock().expect("sound").extend_from_slice(events);
        events.iter().map(|_| Ok(())).collect()
    }
}

pub(crate) async fn six_columns_are_an_event<F: StrangerFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let began = semel_core::Clock::system().now();
    fixture.execute(&insert(UUID, "ord_1", "{\"cents\": 1999}")).await.expect("written");
    let publisher = Published::default();
    let relay = Relay::new(outbox, publisher.clone());
    assert_eq!(relay.drain().await.expect("drained").published, 1);
    let [event] = &publisher.events()[..] else { panic!("one event") };
    assert_eq!(event.id().to_uuid(), UUID);
    assert_eq!((event.tenant(), event.kind(), event.source()), ("acme", "order.placed", "/outbox"));
    let aggregate = event.aggregate().expect("an aggregate");
    assert_eq!((&*aggregate.kind, &*aggregate.id), ("order", "ord_1"));
    assert_eq!(
        (event.content_type(), &event.payload()[..]),
        (Event::JSON, &b"{\"cents\": 1999}"[..])
    );
    assert!(event.sequence().is_some());
    // By the database's clock, which may be a little apart.
    let happened = event.occurred_at();
    let apart = happened.remaining(began).or_else(|| began.remaining(happened));
    assert!(apart.unwrap_or_default() < Duration::from_secs(600), "{happened:?} {began:?}");
    assert_eq!(relay.outbox().backlog().await.expect("a backlog").waiting, 0);
}

/// Also while the first row is leased, and whoever wrote which row.
pub(crate) async fn strangers_and_appends_share_their_partitions<F: StrangerFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let id = || EventId::generate().to_string();
    fixture.execute(&insert(&id(), "1", "1")).await.expect("written");
    put(&fixture, &outbox, &[about("1"), about("2")]).await;
    fixture.execute(&insert(&id(), "1", "2")).await.expect("written");
    fixture.execute(&insert(&id(), "2", "3")).await.expect("written");
    put(&fixture, &outbox, &[about("1")]).await;
    let mut order: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    // One row of each partition can be claimed at a time, the first.
    for (round, heads) in [(1, 2), (2, 2), (3, 1), (4, 1)] {
        let mut leased = outbox.claim(ask(1)).await.expect("a claim");
        leased.extend(outbox.claim(ask(1)).await.expect("a claim"));
        assert_eq!(outbox.claim(ask(9)).await.expect("a claim").len(), 0, "round {round}");
        assert_eq!(leased.len(), heads, "round {round}");
        let marks: Vec<_> = leased.iter().map(|row| (row.ticket, Disposition::Published)).collect();
        let _ = outbox.mark(&marks).await.expect("marked");
        for row in leased {
            let event = row.envelope.expect("valid");
            let order = order.entry(event.aggregate().expect("one").id.to_string()).or_default();
            order.push(row.ticket.sequence);
        }
    }
    assert_eq!(order.values().map(Vec::len).collect::<Vec<_>>(), [4, 2]);
    assert!(order.values().all(|sequences| sequences.is_sorted()), "{order:?}");
}

/// Rows that are no events, each with a part of the reason for which it is dead.
pub(crate) fn malformed() -> Vec<(String, String)> {
    let row = |id: &str, tenant: &str, kind: &str, about: (&str, &str), payload: &str| {
        format!("{SIX} ('{id}', '{tenant}', '{}', '{}', '{kind}', '{payload}')", about.0, about.1)
    };
    let id = || EventId::generate().to_string();
    let order = ("order", "1");
    let long = |count: usize| "x".repeat(count);
    let all = [
        (row(&id(), "acme", "k", order, "{\"cents\": "), "column payload is not JSON"),
        (row(&id(), "acme", "k", order, ""), "column payload is not JSON"),
        (row("order-17", "acme", "k", order, "1"), "column id: \"order-17\" is neither"),
        (row(&UUID.replace("7c1a", "7C1a"), "acme", "k", order, "1"), "neither a ULID nor a UUID"),
        (row(&id(), "acme", "", order, "1"), "column type must have 1 to 128 bytes"),
        (row(&id(), "acme", &long(129), order, "1"), "column type must have 1 to 128 bytes"),
        (row(&id(), "", "k", order, "1"), "column tenant must have 1 to 64 bytes"),
        (row(&id(), &long(65), "k", order, "1"), "column tenant must have 1 to 64 bytes"),
        (row(&id(), "a\tb", "k", order, "1"), "without control characters"),
        (row(&id(), "acme", "k", ("", "1"), "1"), "column aggregatetype must have 1 to 255"),
        (row(&id(), "acme", "k", ("order", &long(256)), "1"), "column aggregateid must have 1 to"),
    ];
    let mut all: Vec<_> = all.map(|(sql, reason)| (sql, reason.to_owned())).into();
    let more = "INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, payload, ";
    for (column, value, reason) in [
        ("headers", "{", "column headers is not a JSON object"),
        ("occurred_at", "yesterday", "time"),
        ("source", " ", "column source must have"),
    ] {
        let values = format!("('{}', 'acme', 'order', '1', 'k', '1', '{value}')", id());
        all.push((format!("{more}{column}) VALUES {values}"), reason.to_owned()));
    }
    all
}

/// Writes malformed rows among sound ones of the same partition, and asserts that a relay buries the
/// former with their reasons, publishes the latter, and that operators see both.
pub(crate) async fn malformed_rows_are_buried<F: StrangerFixture>(
    fixture: &F,
    malformed: Vec<(String, String)>,
) {
    let outbox = fixture.outbox().await;
    let count = malformed.len();
    for (sql, reason) in &malformed {
        fixture.execute(sql).await.unwrap_or_else(|error| panic!("{reason}: {error}"));
        let sound = insert(&EventId::generate().to_string(), "1", "{}");
        fixture.execute(&sound).await.expect("written");
    }
    let publisher = Published::default();
    let relay = Relay::new(outbox, publisher.clone());
    let pass = relay.drain().await.expect("drained");
    assert_eq!((pass.published as usize, pass.buried as usize), (count, count), "{pass:?}");
    let sequences: Vec<_> = publisher.events().iter().map(Event::sequence).collect();
    assert!(sequences.is_sorted(), "{sequences:?}");
    let outbox = relay.outbox();
    let dead = Selection { status: Some(Status::Dead), ..Selection::default() };
    let listed = outbox.list(&dead, None, 100).await.expect("listed");
    assert_eq!(listed.len(), count);
    for (row, (sql, reason)) in listed.iter().zip(&malformed) {
        let error = row.error.as_ref().expect("a reason").as_str();
        let shown: String = sql.chars().take(200).collect();
        assert!(error.contains(&**reason), "{shown}: {error}");
    }
    // An operator's verb is stopped by none of them either.
    let discard = RowAction::Discard { reason: "not ours".into() };
    let applied = outbox.apply(&dead, &discard, None, 100).await.expect("applied");
    assert_eq!(applied.changed as usize, count);
}

/// The same event twice is an error of the second INSERT; a verb finds the row by either form of its id.
pub(crate) async fn an_id_names_one_row<F: StrangerFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    fixture.execute(&insert(UUID, "1", "{")).await.expect("written");
    fixture.execute(&insert(UUID, "2", "{}")).await.expect_err("the id is taken");
    let other_tenant = insert(UUID, "2", "{}").replace("'acme'", "'other'");
    fixture.execute(&other_tenant).await.expect("written");
    let relay = Relay::new(outbox, Published::default());
    let pass = relay.drain().await.expect("drained");
    assert_eq!((pass.published, pass.buried), (1, 1));
    // Corrected, and tried again.
    fixture.execute("UPDATE semel_outbox SET payload = '{}' WHERE status = 4").await.expect("done");
    let ids = vec![EventId::from_ulid_or_uuid(UUID).expect("a UUID")];
    let named = Selection { ids, ..Selection::default() };
    let redriven = relay.outbox().apply(&named, &RowAction::Redrive, None, 10).await;
    assert_eq!(redriven.expect("applied").changed, 1);
    assert_eq!(relay.drain().await.expect("drained").published, 1);
}

/// A payload that no relay could hold is not read.
pub(crate) async fn a_huge_payload_is_buried_unread<F: StrangerFixture>(fixture: F, huge: &str) {
    let id = EventId::generate();
    let sql = insert(&id.to_string(), "1", "HUGE").replace("'HUGE'", huge);
    let reason = "column payload has more than the 15728640 bytes".to_owned();
    malformed_rows_are_buried(&fixture, vec![(sql, reason)]).await;
}

/// Returns the statements of the guide: those of its blocks of code, with the names of their columns and
/// their placeholders.
fn statements(guide: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    let list = |text: &'static str, from: &mut usize, guide: &str| -> (usize, usize) {
        let begin = guide[*from..].find(text).map(|at| *from + at + text.len()).expect(text);
        let end = begin + guide[begin..].find(')').expect("a closing bracket");
        *from = end;
        (begin, end)
    };
    let mut found = Vec::new();
    let mut from = 0;
    while guide[from..].contains("INSERT INTO semel_outbox (") {
        let (begin, end) = list("INSERT INTO semel_outbox (", &mut from, guide);
        let columns = guide[begin..end].split(',').map(str::trim).collect();
        let (begin, mut end) = list("VALUES (", &mut from, guide);
        // An expression of Prisma has brackets of its own.
        while guide[begin..end].matches('(').count() > guide[begin..end].matches(')').count() {
            end += 1 + guide[end + 1..].find(')').expect("a closing bracket");
        }
        from = end;
        found.push((columns, guide[begin..end].split(", ").map(str::trim).collect()));
    }
    found
}

/// Runs every statement of the guide, in both languages, with values bound as texts, and asserts that each
/// is published as an event. `placeholder` is the database's, by its number from 1.
pub(crate) async fn the_guides_statements_are_events<F: StrangerFixture>(
    fixture: F,
    placeholder: fn(usize) -> String,
    bound: impl AsyncFn(&F, String, Vec<String>),
) {
    let english = include_str!("../../../../docs/how-to/outbox-from-any-language.md");
    let chinese = include_str!("../../../../docs/how-to/outbox-from-any-language.zh-CN.md");
    let all = statements(english);
    // JDBC, SQLAlchemy, database/sql, Prisma, knex.
    assert_eq!(all.len(), 5);
    assert_eq!(statements(chinese), all);
    let outbox = fixture.outbox().await;
    let mut ids = Vec::new();
    for (columns, places) in &all {
        assert_eq!(places.len(), columns.len(), "{columns:?} {places:?}");
        let id = EventId::generate();
        ids.push(id);
        let value = |column: &&str| match *column {
            "id" => id.to_uuid(),
            "tenant" => "acme".to_owned(),
            "aggregatetype" => "order".to_owned(),
            "aggregateid" => "ord_17".to_owned(),
            "type" => "order.placed".to_owned(),
            "payload" => r#"{"path": "C:\\new", "é": "\u00e9"}"#.to_owned(),
            other => panic!("the guide has a column {other} that is not explained"),
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let places: Vec<String> = (1..=places.len()).map(placeholder).collect();
        let sql = format!(
            "INSERT INTO semel_outbox ({}) VALUES ({})",
            columns.join(", "),
            places.join(", ")
        );
        bound(&fixture, sql, values).await;
    }
    let publisher = Published::default();
    let relay = Relay::new(outbox, publisher.clone());
    assert_eq!(relay.drain().await.expect("drained").published as usize, all.len());
    for (event, id) in publisher.events().iter().zip(ids) {
        assert_eq!((event.id(), event.tenant(), event.kind()), (id, "acme", "order.placed"));
        assert_eq!(event.payload(), r#"{"path": "C:\\new", "é": "\u00e9"}"#.as_bytes());
    }
}
