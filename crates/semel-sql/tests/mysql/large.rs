//! Tests events of the largest allowed size, and events that are too large for the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::event::{Event, MAX_PAYLOAD};
use semel_core::inbox::{BrokerReply, Handled, Inbox};
use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::ErrorKind;
use semel_core::{Executor, Key, Kind, OnFailure, Policy, Principal, State};
use semel_servers::{MariaDb, Options};
use semel_sql::mysql::MySqlStore;
use semel_testkit::fixture::run;

use crate::fixture::TestDatabase;

/// Returns an event whose payload cannot be written to JSON unencoded.
fn event(about: &str, bytes: usize) -> Arc<Event> {
    let payload: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
    let event = Event::builder("acme", "scan.taken", "/scanner")
        .about("scan", about)
        .payload("application/octet-stream", payload)
        .attribute("region", "eu")
        .build();
    Arc::new(event.expect("an event"))
}

fn inbox(store: MySqlStore) -> Inbox<MySqlStore> {
    let executor = Executor::builder(store).build().expect("an executor");
    let on_failure = OnFailure::Backoff { base: Duration::ZERO, cap: Duration::ZERO };
    Inbox::new(executor).policy(Policy { on_failure, ..Inbox::<MySqlStore>::default_policy() })
}

#[test]
fn the_largest_event_is_appended_claimed_failed_and_handled_with_server_defaults() {
    run(async {
        let database = TestDatabase::new().await;
        let packet = database.number("@@global.max_allowed_packet").await;
        assert_eq!(packet, 16 << 20, "the default of this server");
        let store = database.connect().await;
        assert!(!store.check().await.expect("checked").iter().any(|f| f.code == "mysql-packet"));
        let mut connection = database.plain().await;
        let sent = event("one", MAX_PAYLOAD);
        store.append(&mut connection, std::slice::from_ref(&*sent)).await.expect("appended");
        let ask = ClaimRequest { bytes: u64::MAX, ..ClaimRequest::new(1, Duration::from_secs(60)) };
        let leased = store.claim(ask).await.expect("claimed").remove(0);
        let carried = Arc::new(leased.envelope.expect("readable"));
        assert_eq!(carried.payload(), sent.payload());
        let inbox = inbox(store);
        let failing_once = |name: &str| {
            let runs = AtomicU32::new(0);
            inbox.group(name).on_fenced("scan.taken", move |event, _| {
                let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    assert_eq!(event.payload().len(), MAX_PAYLOAD);
                    if first { Err("no room yet") } else { Ok(()) }
                }
            })
        };
        let ordered = failing_once("ORDERED").ordered();
        assert!(
            matches!(ordered.receive(&carried).await, BrokerReply::Later(_)),
            "its failure is stored"
        );
        assert_eq!(ordered.receive(&carried).await, BrokerReply::Ack, "handled");
        let free = failing_once("FREE");
        assert_eq!(free.receive(&carried).await, BrokerReply::Ack, "its failure is stored");
        let retried = free.retry_due().await.expect("a look");
        assert_eq!((retried.due, retried.handled), (1, 1), "from what was stored");
    });
}

#[test]
fn an_event_that_is_too_large_for_the_server_is_refused_or_dead_and_blocks_no_other() {
    run(async {
        let options = Options::new().flag("--max-allowed-packet=1M");
        let server = MariaDb::start(options).expect("a private server");
        let database = TestDatabase::at(server.url()).await;
        let store = database.connect().await;
        let findings = store.check().await.expect("checked");
        assert!(findings.iter().any(|f| f.code == "mysql-packet"), "{findings:?}");
        let mut connection = database.plain().await;
        for (bytes, taken) in [(900 << 10, true), (1 << 20, false), (2 << 20, false)] {
            let event = event("one", bytes);
            let appended = store.append(&mut connection, std::slice::from_ref(&*event)).await;
            match appended {
                Ok(()) => assert!(taken, "{bytes}"),
                Err(error) => {
                    assert!(!taken, "{bytes}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Misconfigured);
                    assert!(error.to_string().contains("max_allowed_packet"), "{error}");
                }
            }
        }
        let handled = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&handled);
        let inbox = inbox(store);
        let group = inbox.group("ARCHIVE").ordered().on_fenced("scan.taken", move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<(), String>(()) }
        });
        let large = event("one", 2 << 20);
        let results = group.handle(&large).await;
        let Ok(Handled::Dead { error }) = &results[0].1 else { panic!("{results:?}") };
        assert!(error.as_str().contains("too-large"), "{error}");
        assert_eq!(group.receive(&large).await, BrokerReply::Ack, "and so it is every time");
        let (id, nobody) = (large.id().to_string(), Principal::global());
        let key = Key::new(Kind::Event, "acme", "ARCHIVE", nobody, &id).expect("a key");
        let found = inbox.executor().peek(&key).await.expect("a store").expect("a record");
        assert_eq!(found.record.state, State::Dead);
        // The events behind it in its partition are still published, even one that is just small
        // enough.
        for event in [event("one", 10), event("one", 900 << 10)] {
            assert_eq!(group.receive(&event).await, BrokerReply::Ack);
        }
        assert_eq!(handled.load(Ordering::SeqCst), 2);
    });
}
