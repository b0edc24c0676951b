//! Parses and checks the URLs of stores, and opens stores for a service or for an operator.
//!
//! A URL may contain a password, so it is only shown redacted.

pub(crate) mod capacity;
pub(crate) mod database;
pub(crate) mod probe;
pub(crate) mod schema;

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use semel_core::Clock;
use semel_core::store::memory::MemoryStore;
use semel_core::store::{AnyStore, ErrorKind};
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use self::database::Database;
use crate::exit::{ExitError, chain};
use crate::redact::redacted;

/// The URL of a store. Displayed without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    kind: StoreKind,
    text: String,
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// `memory:` or `memory:?capacity=KEYS`; its records are lost when the process ends.
    Memory,
    /// `sqlite:PATH`.
    Sqlite,
    /// `postgres://…`.
    Postgres,
    /// `mysql://…` and `mariadb://…`.
    MySql,
    /// `redis://…`, `rediss://…` and `redis+cluster://…`.
    Redis,
}

impl StoreKind {
    /// Returns the name of the product.
    pub const fn name(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
            StoreKind::Sqlite => "SQLite",
            StoreKind::Postgres => "PostgreSQL",
            StoreKind::MySql => "MySQL",
            StoreKind::Redis => "Redis",
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        let kind = match scheme {
            "memory" if matches!(text["memory:".len()..].chars().next(), None | Some('?')) => {
                StoreKind::Memory
            }
            "sqlite" if text.len() > "sqlite:".len() => StoreKind::Sqlite,
            "postgres" | "postgresql" if text.contains("://") => StoreKind::Postgres,
            "mysql" | "mariadb" if text.contains("://") => StoreKind::MySql,
            "redis" | "rediss" | "redis+cluster" if text.contains("://") => StoreKind::Redis,
            _ => {
                return Err(format!(
                    "`{}` is not a store URL; use sqlite:PATH, postgres://…, mysql://…, redis://…, \
                     redis+cluster://…, memory: or memory:?capacity=KEYS",
                    redacted(text)
                ));
            }
        };
        // sqlx only knows the scheme of MySQL.
        let text = match text.strip_prefix("mariadb:") {
            Some(rest) => format!("mysql:{rest}"),
            None => text.to_owned(),
        };
        check(kind, &text)?;
        Ok(Self { kind, text })
    }
}

/// Checks that the client of this kind can parse the URL, before any connection is made.
fn check(kind: StoreKind, text: &str) -> Result<(), String> {
    let wrong =
        |why: String| Err(format!("`{}` is not a {} URL: {why}", redacted(text), kind.name()));
    match kind {
        StoreKind::Memory => capacity(text).map(drop).or_else(wrong),
        // sqlx would interpret the parameters as its own.
        StoreKind::Sqlite if text.contains('?') => {
            wrong("a SQLite URL takes no parameters".to_owned())
        }
        StoreKind::Sqlite => Ok(()),
        StoreKind::Postgres => match text.parse::<sqlx::postgres::PgConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(chain(&error)),
        },
        StoreKind::MySql => match text.parse::<sqlx::mysql::MySqlConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(chain(&error)),
        },
        StoreKind::Redis => {
            let nodes = match text.strip_prefix("redis+cluster://") {
                Some(nodes) => {
                    nodes.split(',').map(|node| format!("redis://{}", node.trim())).collect()
                }
                None => vec![text.to_owned()],
            };
            match nodes.iter().find_map(|node| redis::Client::open(node.as_str()).err()) {
                None => Ok(()),
                Some(error) => wrong(error.to_string()),
            }
        }
    }
}

/// Returns the number of keys that a memory store may hold, from its URL.
fn capacity(text: &str) -> Result<usize, String> {
    let Some((_, parameters)) = text.split_once('?') else { return Ok(MemoryStore::CAPACITY) };
    let keys = match parameters.split_once('=') {
        Some(("capacity", keys)) => keys,
        Some(_) | None => return Err("its one parameter is capacity=KEYS".to_owned()),
    };
    match keys.parse() {
        Ok(0) => Err("a capacity of 0 keys holds nothing".to_owned()),
        Ok(keys) => Ok(keys),
        Err(_) => Err("a capacity is a number of keys, as in memory:?capacity=100000".to_owned()),
    }
}

impl Default for StoreUrl {
    /// Returns `sqlite:semel.db`.
    fn default() -> Self {
        Self { kind: StoreKind::Sqlite, text: "sqlite:semel.db".to_owned() }
    }
}

impl StoreUrl {
    /// Returns the kind of store.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Returns the whole URL with its password, for connecting.
    pub(crate) fn secret(&self) -> &str {
        &self.text
    }

    /// Returns the path of a SQLite store's file; `None` for other stores.
    pub fn path(&self) -> Option<&Path> {
        let path = self.text.strip_prefix("sqlite:")?;
        // sqlx writes `sqlite://orders.db`, and `sqlite:///var/orders.db` for an absolute path.
        Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.text))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The mode in which a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens the store for a service: a missing SQLite file and missing tables are created.
    Serve,
    /// Opens the store for an operator: nothing is created, and a missing SQLite file is an error.
    Inspect,
}

/// An open store.
#[derive(Clone, Debug)]
pub enum StoreHandle {
    /// A store in the memory of this process.
    Memory(MemoryStore),
    /// A store in a SQLite file.
    Sqlite(SqliteStore),
    /// A store on a PostgreSQL server.
    Postgres(PgStore),
    /// A store on a MySQL or MariaDB server.
    MySql(MySqlStore),
    /// A store on a Redis server or cluster.
    Redis(RedisStore),
}

impl StoreHandle {
    /// Opens the store at `url`; `prefix` is the prefix of a Redis ledger's keys.
    ///
    /// # Errors
    /// Returns an error with the URL if the store cannot be reached or has no ledger.
    pub async fn open(url: &StoreUrl, opening: OpenMode, prefix: &str) -> Result<Self, ExitError> {
        let opened = Self::try_open(url, opening, prefix).await;
        opened.map_err(|failure| failure.during(format_args!("cannot open {url}")))
    }

    async fn try_open(url: &StoreUrl, opening: OpenMode, prefix: &str) -> Result<Self, ExitError> {
        let serve = opening == OpenMode::Serve;
        Ok(match url.kind {
            StoreKind::Memory => {
                let keys = capacity(&url.text).map_err(ExitError::usage)?;
                StoreHandle::Memory(MemoryStore::with(keys, Clock::system()))
            }
            StoreKind::Sqlite => {
                let path = url.path().map(PathBuf::from).unwrap_or_default();
                if !serve && !path.exists() {
                    return Err(ExitError::unreachable("there is no such file"));
                }
                // The file is verified before it is opened, because opening it turns on its
                // write-ahead log, and the database of another program must not be changed by
                // looking at it.
                if !serve {
                    schema::usable(&schema::of_file(&path).await?)?;
                }
                let opened = SqliteStore::builder(&path).migrate(serve).open().await;
                let opened = match opened {
                    // A file that cannot be written may still be readable.
                    Err(error) if !serve && error.kind() == ErrorKind::Misconfigured => {
                        let reading = SqliteStore::builder(&path).migrate(false).read_only(true);
                        reading.open().await.map_err(|_| error)
                    }
                    opened => opened,
                };
                StoreHandle::Sqlite(opened.map_err(|error| unopened(&path, error))?)
            }
            StoreKind::Postgres => {
                let store = PgStore::connect(&url.text).await?;
                if serve {
                    schema::usable(&schema::bring_up(&store).await?.findings)?;
                }
                StoreHandle::Postgres(store)
            }
            StoreKind::MySql => {
                let store = MySqlStore::connect(&url.text).await?;
                if serve {
                    schema::usable(&schema::bring_up(&store).await?.findings)?;
                }
                StoreHandle::MySql(store)
            }
            StoreKind::Redis => {
                StoreHandle::Redis(RedisStore::builder().prefix(prefix).connect(&url.text).await?)
            }
        })
    }

    /// Returns the ledger of the store.
    pub fn ledger(&self) -> AnyStore {
        match self.clone() {
            StoreHandle::Memory(store) => AnyStore::new(store),
            StoreHandle::Sqlite(store) => AnyStore::new(store),
            StoreHandle::Postgres(store) => AnyStore::new(store),
            StoreHandle::MySql(store) => AnyStore::new(store),
            StoreHandle::Redis(store) => AnyStore::new(store),
        }
    }

    /// Returns the SQL database with its outbox and id map; `None` for memory and Redis.
    pub(crate) fn database(&self) -> Option<Database> {
        match self.clone() {
            StoreHandle::Sqlite(store) => Some(store.into()),
            StoreHandle::Postgres(store) => Some(store.into()),
            StoreHandle::MySql(store) => Some(store.into()),
            StoreHandle::Memory(_) | StoreHandle::Redis(_) => None,
        }
    }

    /// Finishes the work under way and closes files.
    pub async fn close(&self) {
        if let StoreHandle::Sqlite(store) = self {
            store.close().await;
        }
    }
}

/// Returns the error for a SQLite file that could not be opened, with the reason if it can be
/// determined.
fn unopened(path: &Path, error: semel_core::store::Error) -> ExitError {
    match obstacle(path) {
        Some(why) => ExitError::unreachable(why),
        None => error.into(),
    }
}

/// Returns the reason why a file cannot be opened as a database, with a fix; `None` if none is
/// found.
fn obstacle(path: &Path) -> Option<String> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let named = directory.display();
    if path.is_dir() {
        let inside = path.join("semel.db");
        return Some(format!("it is a directory; name a file, as in sqlite:{}", inside.display()));
    }
    if !directory.is_dir() {
        return Some(format!("there is no directory {named}; create it, or name another file"));
    }
    let mut file = match std::fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) => return Some(unwritable(&named.to_string(), &error)),
    };
    let mut begins = Vec::new();
    let read = file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut begins);
    // An empty file can become a database.
    (read.is_ok() && !begins.is_empty() && begins != MAGIC).then(|| {
        "it is not a SQLite database; name one, or a file that does not exist yet".to_owned()
    })
}

fn unwritable(directory: &str, error: &std::io::Error) -> String {
    format!(
        "{error}; let this user read and write the file, and create files beside it in {directory}"
    )
}

/// The first bytes of every SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_password_is_shown_whatever_its_characters(
            password in "\\PC{4,24}|(?s).{4,24}|[a-z@:/?#&=, ]{4,24}",
        ) {
            for (before, after, shown) in [
                ("postgres://ann:", "@host/db", "postgres://ann:***@host/db"),
                ("redis+cluster://:", "@one:1,two:2", "redis+cluster://:***@one:1,two:2"),
                ("amqp://ann:", "@host:5672/%2f", "amqp://ann:***@host:5672/%2f"),
                ("kafka://ann:", "@host", "kafka://ann:***@host"),
                ("mysql://host/db?user=ann&password=", "", "mysql://host/db?user=ann&password=***"),
                ("mysql://host/db?ssl-token=", "&a=b", "mysql://host/db?ssl-token=***"),
                ("ann:", "@host/db", "***@host/db"),
            ] {
                let url = format!("{before}{password}{after}");
                if before == "ann:" && password.starts_with("//") {
                    continue; // Together that is a whole URL with another user.
                }
                // Only the scheme is shown if the parts are ambiguous.
                let scheme = before.find("://").map_or("", |end| &before[..end + 3]);
                let redacted_url = redacted(&url);
                prop_assert!(redacted_url == shown || redacted_url == format!("{scheme}***"), "{url:?}: {redacted_url:?}");
                // Error messages must not show more.
                let parsed = url.parse::<StoreUrl>().map(|url| format!("{url} {url:?}"));
                let failure = ExitError::usage(format_args!("--store: `{redacted_url}` is not a store URL"));
                let refused = [parsed.unwrap_or_else(|why| why), failure.to_string()];
                // A short password may occur in a sentence by chance.
                for message in refused.into_iter().filter(|_| password.len() >= 10) {
                    let left = message.replace(&redacted_url, "").replace(shown, "");
                    prop_assert!(!left.contains(&password), "{url:?}: {message}");
                }
            }
        }
    }

    #[test]
    fn the_reason_why_a_file_cannot_be_opened_comes_with_a_fix() {
        let directory = std::env::temp_dir().join(format!("semel-way-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("a.db");
        assert!(
            obstacle(&directory).is_some_and(|message| message.contains("directory; name a file"))
        );
        let below = obstacle(&directory.join("b").join("a.db"));
        assert!(below.is_some_and(|message| message.contains("create it, or name another")));
        // The file does not exist, although it should have been created.
        assert!(obstacle(&file).is_some_and(|message| message.contains("beside it in")));
        std::fs::write(&file, "").unwrap();
        assert_eq!(obstacle(&file), None);
        std::fs::write(&file, "a letter to the editor").unwrap();
        assert!(obstacle(&file).is_some_and(|message| message.contains("not a SQLite database")));
        std::fs::write(&file, MAGIC).unwrap();
        assert_eq!(obstacle(&file), None);
        let denied = unwritable("/var", &std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.contains("permission denied") && denied.contains("/var"), "{denied}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_url_determines_the_kind_of_store() {
        let kind = |text: &str| text.parse::<StoreUrl>().map(|url| url.kind());
        assert_eq!(kind("sqlite:semel.db"), Ok(StoreKind::Sqlite));
        assert_eq!(kind("postgresql://db/x"), Ok(StoreKind::Postgres));
        assert_eq!(kind("mariadb://db/x"), Ok(StoreKind::MySql));
        assert_eq!(kind("redis+cluster://a,b"), Ok(StoreKind::Redis));
        assert_eq!(kind("memory:"), Ok(StoreKind::Memory));
        assert_eq!(kind("memory:?capacity=7"), Ok(StoreKind::Memory));
        let none = ["", "sqlite:", "semel.db", "memory:x", "mongodb://x", "sqlite:a.db?mode=ro"];
        let garbled =
            ["postgres:db", "postgres://db:x/y", "mysql://[", "redis://", "redis://a:b:c"];
        for wrong in none.into_iter().chain(garbled) {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
        let refused = kind("postgres://ann:se/cret@db").unwrap_err();
        assert!(!refused.contains("cret"), "{refused}");
    }

    #[tokio::test]
    async fn a_memory_store_has_the_capacity_of_its_url() {
        assert_eq!((capacity("memory:"), capacity("memory:?capacity=7")), (Ok(10_000), Ok(7)));
        for (wrong, named) in [
            ("memory:?capacity=0", "holds nothing"),
            ("memory:?capacity=", "number of keys"),
            ("memory:?capacity=-1", "number of keys"),
            ("memory:?capacity=10k", "number of keys"),
            ("memory:?capacity=1&capacity=2", "number of keys"),
            ("memory:?size=1", "capacity=KEYS"),
            ("memory:?", "capacity=KEYS"),
        ] {
            let refused = wrong.parse::<StoreUrl>().unwrap_err();
            assert!(refused.contains(named), "{wrong}: {refused}");
        }
        let url = "memory:?capacity=1".parse().unwrap();
        let handle = StoreHandle::open(&url, OpenMode::Serve, "").await.unwrap();
        let executor = semel_core::Executor::new(handle.ledger());
        let run = async |id| {
            let key = semel_core::Key::command("acme", "PAY", id).unwrap();
            executor.run(semel_core::Command::new(key), |_| async { Ok::<_, String>(1) }).await
        };
        assert!(run("a").await.is_ok());
        assert!(matches!(run("b").await, Err(semel_core::Error::Capacity)));
    }

    #[test]
    fn a_path_may_be_in_the_notation_of_sqlx() {
        for (url, path) in [
            ("sqlite:a.db", "a.db"),
            ("sqlite://a.db", "a.db"),
            ("sqlite:///var/a.db", "/var/a.db"),
            ("sqlite:/var/a.db", "/var/a.db"),
        ] {
            assert_eq!(url.parse::<StoreUrl>().unwrap().path(), Some(Path::new(path)));
        }
    }
}
