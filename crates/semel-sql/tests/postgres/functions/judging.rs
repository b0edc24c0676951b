//! The functions beside the judge in random histories: same verdicts, same records.

use std::time::Duration;

use semel_core::Key;
use semel_core::store::BoxFuture;
use semel_sql::postgres::PgStore;
use semel_testkit::Fixture;
use semel_testkit::fixture::SecondJudge;
use semel_testkit::model::{self, Settings};

use super::{PgSession, sabotage};
use crate::database::Database;
use crate::session::FunctionJudge;

struct Judged {
    // First: it is closed before the database is dropped.
    functions: FunctionJudge<PgSession>,
    database: Database,
}

impl Judged {
    async fn new() -> Self {
        let database = Database::new().await;
        let functions = FunctionJudge::new(PgSession::open(&database).await);
        Self { functions, database }
    }
}

impl Fixture for Judged {
    type Store = PgStore;

    async fn store(&self) -> PgStore {
        self.database.store().await
    }

    async fn advance(&self, span: Duration) {
        self.database.advance(span).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        self.database.jump(span, ahead).await
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        self.database.corrupt(key)
    }

    fn second_judge(&self) -> Option<&dyn SecondJudge> {
        Some(&self.functions)
    }
}

semel_testkit::model_test!(Judged::new());

/// The comparison itself can fail: a judge that differs in one check is found.
#[test]
fn a_second_judge_that_drifted_is_found() {
    semel_testkit::fixture::run(async {
        for (from, to) in [
            ("r.state in (1, 2) and r.expires_at <= us", "r.state = 1 and r.expires_at <= us"),
            ("r.fingerprint <> fingerprint and", "false and"),
            ("elsif r.on_crash = 0 then", "elsif true then"),
        ] {
            let judged = Judged::new().await;
            sabotage(&judged.database, "semel_judge", from, to).await;
            let settings = Settings { cases: 64, seed: 1, ..Settings::new() };
            let report = model::run(judged, settings).await;
            assert!(!report.mismatches.is_empty(), "{from} is not compared");
        }
    });
}
