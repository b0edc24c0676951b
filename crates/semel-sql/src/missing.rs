//! Recognises errors about missing tables of the schema, explains them to the caller, and logs each
//! table once.
//!
//! The resulting error is `Misconfigured`, which executors and relays count in
//! `semel_store_errors_total{kind="misconfigured"}`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The tables that the statements of this crate use.
const TABLES: [&str; 5] =
    ["semel_record", "semel_clock", "semel_outbox", "semel_id_map", "semel_migration"];

/// The tables that this process has already logged as missing.
static LOGGED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns what to do about `error` if it reports that a table of the schema does not exist. Also
/// logs the table, the first time in this process.
pub(crate) fn explanation(operation: &'static str, error: &sqlx::Error) -> Option<String> {
    let table = missing_table(error)?;
    let text = format!(
        "the table {table} does not exist: run `semel migrate apply --store URL`, or call \
         `store.migrate().await` before the first use"
    );
    if LOGGED.lock().unwrap_or_else(PoisonError::into_inner).insert(table) {
        tracing::error!(table, operation, %error, "{text}");
    }
    Some(text)
}

fn missing_table(error: &sqlx::Error) -> Option<&'static str> {
    let refusal = error.as_database_error()?;
    // PostgreSQL's code, and the SQLSTATE of MySQL's error 1146. SQLite has one code for all such
    // errors, so its message is compared.
    let is_missing = matches!(refusal.code().as_deref(), Some("42P01" | "42S02"))
        || refusal.message().starts_with("no such table");
    // The message may be translated; the table's name in it is not.
    let named = |table: &&&'static str| refusal.message().contains(**table);
    TABLES.iter().filter(|_| is_missing).find(named).copied()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fmt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sqlx::error::{DatabaseError, ErrorKind};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    #[derive(Debug)]
    struct Refusal(&'static str, &'static str);

    impl fmt::Display for Refusal {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.1)
        }
    }

    impl std::error::Error for Refusal {}

    impl DatabaseError for Refusal {
        fn message(&self) -> &str {
            self.1
        }
        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }
        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    fn refused(code: &'static str, message: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Refusal(code, message)))
    }

    #[test]
    fn each_servers_error_about_a_missing_table_is_recognised_and_no_other_is() {
        let table = |code, message| missing_table(&refused(code, message));
        let postgres = "relation \"semel_outbox\" does not exist";
        assert_eq!(table("42P01", postgres), Some("semel_outbox"));
        let german = "Relation »semel_record« existiert nicht";
        assert_eq!(table("42P01", german), Some("semel_record"));
        let mysql = "Table 'semel_01.semel_id_map' doesn't exist";
        assert_eq!(table("42S02", mysql), Some("semel_id_map"));
        assert_eq!(table("1", "no such table: semel_clock"), Some("semel_clock"));
        assert_eq!(table("42P01", "relation \"orders\" does not exist"), None);
        assert_eq!(table("1", "no such column: semel_record"), None);
    }

    /// Counts the events that are logged at level ERROR.
    #[derive(Clone, Default)]
    struct Errors(Arc<AtomicUsize>);

    impl Subscriber for Errors {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::ERROR
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_missing_table_is_explained_every_time_and_logged_once() {
        let errors = Errors::default();
        let _here = tracing::subscriber::set_default(errors.clone());
        for _ in 0..3 {
            let error = refused("42P01", "relation \"semel_migration\" does not exist");
            let text = explanation("migrate", &error).expect("the table belongs to the schema");
            assert!(text.contains("semel migrate apply --store"), "{text}");
            assert!(text.contains("store.migrate().await"), "{text}");
        }
        assert_eq!(errors.0.load(Ordering::SeqCst), 1);
    }
}
