//! Databases that belong to one test.

use std::path::Path;
use std::process::Command;

use semel_stores::{Address, PrivateStore};

/// Databases of their own that have Semel's tables and functions.
#[derive(Debug)]
pub(crate) struct Databases(Vec<PrivateStore>);

impl Databases {
    pub(crate) async fn on(names: &[&str]) -> Self {
        let mut stores = Vec::new();
        for name in names {
            stores.push(PrivateStore::named(name).await.expect("a private database"));
        }
        Self(stores)
    }

    /// Returns the URLs, in the order of the names.
    pub(crate) fn urls(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|store| match store.backend().address() {
            Address::Postgres(url) | Address::MySql(url) => Some(url.as_str()),
            Address::Memory(_) | Address::Sqlite(_) | Address::Redis { .. } => None,
        })
    }

    /// Returns a directory that is gone with the databases.
    pub(crate) fn directory(&self) -> &Path {
        self.0.first().expect("a database").directory()
    }

    /// Names the databases in the environment of a command.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for url in self.urls() {
            let is_mysql = url.starts_with("mysql:");
            let name = if is_mysql { "SEMEL_TEST_MYSQL_URL" } else { "SEMEL_TEST_POSTGRES_URL" };
            command.env(name, url);
        }
        command
    }

    pub(crate) async fn remove(self) {
        for store in self.0 {
            store.remove().await;
        }
    }
}
