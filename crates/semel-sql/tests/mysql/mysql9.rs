//! MySQL 9, on which the same suites run as on MariaDB.

mod conforms {
    use crate::fixture::TestDatabase;

    semel_testkit::conformance!(TestDatabase::mysql9());
}

mod transacts {
    use crate::fixture::TestDatabase;

    async fn database() -> TestDatabase {
        TestDatabase::mysql9().await.and_effects().await
    }

    semel_testkit::transactions!(database());
    semel_testkit::model_test!(TestDatabase::mysql9());
}

mod outbox {
    use crate::fixture::TestDatabase;

    semel_testkit::outbox_conformance!(TestDatabase::mysql9(); rollback, writers, damage, executor);
}

mod idmap {
    use crate::fixture::TestDatabase;

    semel_testkit::idmap_conformance!(TestDatabase::mysql9(); rollback, writers, foreign, executor);
}

use std::time::Duration;

use semel_core::store::{Renewed, Renewer as _, Settled, Store as _};
use semel_testkit::fixture::run;

use crate::fixture::{TestDatabase, claim, draft, failure, key, keys, lease, success};

#[test]
fn many_claims_are_renewed_and_ended_in_one_statement_each() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let store = database.with_one_connection().await;
            let mut leases = Vec::new();
            for key in keys(8) {
                leases.push((claim(&store, &key).await, Duration::from_secs(3_600)));
            }
            // One was settled before and one was taken over: only those are lost.
            assert_eq!(
                store.settle(&leases[2].0, &success("early")).await.expect("ok"),
                Settled::Done
            );
            let stranger = draft(&keys(8)[5]);
            leases[5].0 = lease(&stranger, semel_core::Fence(1));
            let mut renewer = store.renewer().await.expect("renewer");
            let renewed = renewer.renew(&leases).await.expect("renewed");
            for (i, renewed) in renewed.into_iter().enumerate() {
                let expected = if [2, 5].contains(&i) { Renewed::Lost } else { Renewed::Extended };
                assert_eq!(renewed, expected, "{i}");
            }
            let unleased = "SELECT COUNT(*) FROM semel_record WHERE state = 0 \
                            AND (lease_until IS NULL OR lease_until < updated_at + 3599000000)";
            assert_eq!(database.number(unleased).await, 1, "that of the stranger");
            // The first goes alone, the others share a statement.
            let first = claim(&store, &key("first")).await;
            let settlement =
                |i: usize| if i.is_multiple_of(2) { success("done") } else { failure() };
            let settlements: Vec<_> = (0..8).map(settlement).collect();
            let settles =
                leases.iter().zip(&settlements).map(|((lease, _), e)| store.settle(lease, e));
            let all = futures_util::future::join_all(settles);
            let (alone, all) = tokio::join!(store.settle(&first, &settlements[0]), all);
            assert_eq!(alone.expect("settled"), Settled::Done);
            for (i, settled) in all.into_iter().enumerate() {
                let expected = if [2, 5].contains(&i) { Settled::Lost } else { Settled::Done };
                assert_eq!(settled.expect("an answer"), expected, "{i}");
            }
            for (i, key) in keys(8).iter().enumerate() {
                let record = store.peek(key).await.expect("readable").expect("there").record;
                let expected = match i {
                    5 => semel_core::State::Running,
                    i if i % 2 == 0 => semel_core::State::Succeeded,
                    _ => semel_core::State::Failed,
                };
                assert_eq!(record.state, expected, "{i}");
            }
        }
    });
}
