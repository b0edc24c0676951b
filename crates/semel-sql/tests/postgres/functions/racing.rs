//! Each effect once, whatever fails, and more than once as soon as a guard is taken away.

use std::sync::Arc;

use super::{PgSession, sabotage};
use crate::database::Database;
use crate::race::{Audit, race};

const EFFECTS: &str = "create table effects (id text not null, answer text not null)";

async fn raced(database: Database) -> Audit {
    database.run(EFFECTS).await;
    let database = Arc::new(database);
    race(move || {
        let database = Arc::clone(&database);
        async move { PgSession::open(&database).await }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_happens_once_for_programs_that_know_only_the_functions() {
    raced(Database::new().await).await.assert_exactly_once();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_effect_happens_once_behind_a_pooler() {
    raced(Database::pooled().await).await.assert_exactly_once();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lock_work_runs_in_vain() {
    let database = Database::new().await;
    let lock = "pg_try_advisory_xact_lock(public.semel_lock_key(draft.digest))";
    sabotage(&database, "semel_take", lock, "true").await;
    let audit = raced(database).await;
    assert!(audit.vain > 0, "{audit:?}");
    assert_eq!((audit.doubled, audit.lost), (0, 0), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_check_of_the_claim_effects_are_doubled() {
    let database = Database::new().await;
    let check = "if new.digest is null then";
    sabotage(
        &database,
        "semel_complete",
        check,
        "if new.digest is null then return; end if; if false then",
    )
    .await;
    let audit = raced(database).await;
    assert!(audit.doubled > 0, "{audit:?}");
}
