//! Tests a store without its tables: every call fails with the missing table and the command to
//! run.

use std::time::Duration;

use semel_core::event::Event;
use semel_core::outbox::{ClaimRequest, Outbox};
use semel_core::store::{Draft, Error, ErrorKind, Store, TransactionalStore};
use semel_ids::TypedId;
use semel_ids::map::{Binding, IdMap};
use semel_ids::resource::{Order, Resource as _};
use ulid::Ulid;

fn assert_names(error: &Error, table: &str) {
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let text = error.to_string();
    for words in [table, "does not exist", "semel migrate apply --store", "store.migrate().await"] {
        assert!(text.contains(words), "{words} in: {text}");
    }
}

/// Calls the ledger, the outbox and the id map of a store whose tables are missing.
pub(crate) async fn are_reported_with_the_command_to_run<S, C>(store: &S, draft: &Draft)
where
    C: Send,
    S: Store + TransactionalStore<Connection = C> + Outbox<Connection = C> + IdMap<Connection = C>,
{
    let ledger = "semel_record";
    assert_names(&store.open(draft).await.expect_err("no table"), ledger);
    assert_names(&store.peek(&draft.key).await.expect_err("no table"), ledger);
    let ask = ClaimRequest::new(1, Duration::from_secs(30));
    assert_names(&store.claim(ask).await.expect_err("no table"), "semel_outbox");
    let order = Binding::of::<Order>("acme", TypedId::new(Ulid(7))).expect("a tenant");
    let found = store.find("acme", Order::TYPE, &[*order.public()]).await;
    assert_names(&found.expect_err("no table"), "semel_id_map");
    let event = Event::builder("acme", "order.placed", "/orders").build().expect("an event");
    let mut transaction = match store.begin().await {
        Ok(transaction) => transaction,
        // A session that prepares the ledger's statements fails earlier.
        Err(error) => return assert_names(&error, ledger),
    };
    let appended = store.append(S::connection(&mut transaction), &[event]).await;
    assert_names(&appended.expect_err("no table"), "semel_outbox");
    store.rollback(transaction).await;
    let mut transaction = store.begin().await.expect("a transaction needs no table");
    let opened = store.open_in(S::connection(&mut transaction), draft).await;
    assert_names(&opened.expect_err("no table"), ledger);
    store.rollback(transaction).await;
}
