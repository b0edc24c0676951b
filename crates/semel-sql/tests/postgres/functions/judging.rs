//! The functions beside the judge in random histories: same verdicts, same records.

use std::time::Duration;

use semel_core::Key;
use semel_core::store::BoxFuture;
use semel_sql::postgres::PgStore;
use semel_testkit::Fixture;
use semel_testkit::model::SecondJudge;

use super::PgSession;
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
