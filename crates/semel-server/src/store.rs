//! Where things are kept, chosen by URL: a store of each kind, opened the way it is used here.
//!
//! A URL may hold a password, so none is shown as it was written. What a store can do is its own
//! crate's business.

pub(crate) mod capacity;
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

use crate::exit::ExitError;

/// Words in the names of parameters that hold what nobody is to see.
const SECRET: [&str; 4] = ["pass", "pwd", "secret", "token"];

/// The address of a store. Shows itself without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    kind: StoreKind,
    text: String,
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// `memory:` or `memory:?capacity=KEYS`, gone with the process.
    Memory,
    /// `sqlite:PATH`.
    Sqlite,
    /// `postgres://…`.
    Postgres,
    /// `mysql://…`, MariaDB too.
    MySql,
    /// `redis://…`, `rediss://…` and `redis+cluster://…`.
    Redis,
}

impl StoreKind {
    /// Its name in sentences.
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
                    "`{}` is no store; one of sqlite:PATH, postgres://…, mysql://…, redis://…, \
                     redis+cluster://…, memory:, memory:?capacity=KEYS",
                    redacted(text)
                ));
            }
        };
        // sqlx knows MariaDB under MySQL's name.
        let text = match text.strip_prefix("mariadb:") {
            Some(rest) => format!("mysql:{rest}"),
            None => text.to_owned(),
        };
        check(kind, &text)?;
        Ok(Self { kind, text })
    }
}

/// Whether the kind's own client can read the URL: found out before anything is dialled.
fn check(kind: StoreKind, text: &str) -> Result<(), String> {
    let wrong = |why: String| Err(format!("`{}` is no {} URL: {why}", redacted(text), kind.name()));
    match kind {
        StoreKind::Memory => capacity(text).map(drop).or_else(wrong),
        // A file's name may hold one, and sqlx's parameters are not ours.
        StoreKind::Sqlite if text.contains('?') => wrong("it takes no parameters".to_owned()),
        StoreKind::Sqlite => Ok(()),
        StoreKind::Postgres => match text.parse::<sqlx::postgres::PgConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(crate::exit::chain(&error)),
        },
        StoreKind::MySql => match text.parse::<sqlx::mysql::MySqlConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(crate::exit::chain(&error)),
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

/// How many keys a memory store may hold.
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

impl StoreUrl {
    /// What is used where nobody says which: `sqlite:semel.db`.
    pub fn usual() -> Self {
        Self { kind: StoreKind::Sqlite, text: "sqlite:semel.db".to_owned() }
    }

    /// Which kind of store it names.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// The URL as it was written, for whoever dials it.
    pub(crate) fn secret(&self) -> &str {
        &self.text
    }

    /// The file of a SQLite store.
    pub fn path(&self) -> Option<&Path> {
        let path = self.text.strip_prefix("sqlite:")?;
        // `sqlite://orders.db` is how sqlx writes it, `sqlite:///var/orders.db` an absolute path.
        Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
    }
}

/// A URL without its password, for people and logs. A password may hold any character, and half a URL
/// is pasted as easily as a whole one: whatever stands before the last `@`, or after `password=`, may be
/// it. Where both are so it shows nothing at all; in doubt it shows rather too little.
pub fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.find("://").map(|end| url.split_at(end + 3)) {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        Some(_) | None => ("", url),
    };
    // A path has no password, and may have an `@`.
    if url.trim_start_matches(QUOTES).starts_with("sqlite:") {
        return url.to_owned();
    }
    let (at, value) = (rest.rfind('@'), secret(rest));
    if at.zip(value).is_some_and(|(at, value)| at >= value) {
        return format!("{scheme}***");
    }
    let (shown, hidden) = match value {
        Some(value) => (&rest[..value], "***"),
        None => (rest, ""),
    };
    match at {
        Some(at) => {
            let (user, after) = shown.split_at(at);
            format!("{scheme}{}{after}{hidden}", user_alone(scheme, user))
        }
        None if scheme.is_empty() => format!("{shown}{hidden}"),
        None => match unfinished(shown) {
            Some(user) => format!("{scheme}{user}:***"),
            None => format!("{scheme}{shown}{hidden}"),
        },
    }
}

/// What people and messages put in front of a URL.
const QUOTES: [char; 5] = ['\'', '"', '`', '(', '['];

/// Whether this, with its `://`, is how a URL begins. Half a URL with such a password is none.
fn is_scheme(text: &str) -> bool {
    let name = text.trim_start_matches(QUOTES).trim_end_matches("://");
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// What stands before the `@`, without the password.
fn user_alone(scheme: &str, user: &str) -> String {
    let plain = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-%+".contains(&byte))
    };
    match user.split_once(':') {
        Some((name, _)) if !scheme.is_empty() && plain(name) => format!("{name}:***"),
        // An address, or whatever else has an `@`.
        None if scheme.is_empty() => user.to_owned(),
        // A name alone is a name to a database, and a token to others.
        None if (scheme.contains("sql") || scheme.contains("postgres")) && plain(user) => {
            user.to_owned()
        }
        Some(_) | None => "***".to_owned(),
    }
}

/// Where a URL without `@` has something else than a port behind its `:`, that is the beginning of a
/// password; gives what is before it.
fn unfinished(rest: &str) -> Option<&str> {
    let host = &rest[..rest.find(['/', '?', '#', ',']).unwrap_or(rest.len())];
    let (before, port) = host.rsplit_once(':')?;
    // `[::1]` has colons of its own, and a quoted URL an end that is not its own.
    let port = port.trim_end_matches(|end: char| !end.is_alphanumeric());
    let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
    (!is_port && !host.ends_with(']')).then_some(before)
}

/// Where the value of the first parameter begins that holds what nobody is to see.
fn secret(text: &str) -> Option<usize> {
    text.match_indices('=').map(|(at, _)| at + 1).find(|value| {
        let before = text[..value - 1].to_ascii_lowercase();
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c)).next();
        name.is_some_and(|name| SECRET.iter().any(|word| name.contains(word)))
    })
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

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// By a service: what is missing (a SQLite file, tables) is made.
    Serve,
    /// By an operator: a SQLite file that is not there is an error, and nothing is made.
    Look,
}

/// An open store of some kind.
#[derive(Clone, Debug)]
pub enum StoreHandle {
    /// In this process.
    Memory(MemoryStore),
    /// A file.
    Sqlite(SqliteStore),
    /// A server.
    Postgres(PgStore),
    /// A server.
    MySql(MySqlStore),
    /// A server or a cluster.
    Redis(RedisStore),
}

impl StoreHandle {
    /// Opens the store at `url`; `prefix` is what a Redis ledger's keys begin with.
    ///
    /// # Errors
    /// It cannot be reached or is no ledger, said with its address.
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
                // Asked before it is opened, which turns a file into one with a write-ahead log:
                // somebody else's database is not to be changed by looking.
                if !serve {
                    schema::usable(&schema::of_file(&path).await?)?;
                }
                let opened = SqliteStore::builder(&path).migrate(serve).open().await;
                let opened = match opened {
                    // What may not be written can be looked at.
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

    /// Its ledger, whichever it is.
    pub fn ledger(&self) -> AnyStore {
        match self.clone() {
            StoreHandle::Memory(store) => AnyStore::new(store),
            StoreHandle::Sqlite(store) => AnyStore::new(store),
            StoreHandle::Postgres(store) => AnyStore::new(store),
            StoreHandle::MySql(store) => AnyStore::new(store),
            StoreHandle::Redis(store) => AnyStore::new(store),
        }
    }

    /// Finishes what is under way and closes files.
    pub async fn close(&self) {
        if let StoreHandle::Sqlite(store) = self {
            store.close().await;
        }
    }
}

/// A file that was not opened is as unreachable as a server that is away, and here it can be seen why.
fn unopened(path: &Path, error: semel_core::store::Error) -> ExitError {
    match in_the_way(path) {
        Some(why) => ExitError::unreachable(why),
        None => error.into(),
    }
}

/// What is in the way of a file's being a database, and what to do about it.
fn in_the_way(path: &Path) -> Option<String> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let named = directory.display();
    if path.is_dir() {
        let inside = path.join("semel.db");
        return Some(format!(
            "that is a directory; name a file, as in sqlite:{}",
            inside.display()
        ));
    }
    if !directory.is_dir() {
        return Some(format!("there is no directory {named}; make it, or name another file"));
    }
    let mut file = match std::fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) => return Some(unwritable(&named.to_string(), &error)),
    };
    let mut begins = Vec::new();
    let read = file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut begins);
    // An empty file becomes a database.
    (read.is_ok() && !begins.is_empty() && begins != MAGIC)
        .then(|| "that is no SQLite database; name one, or a file that is not there yet".to_owned())
}

fn unwritable(directory: &str, error: &std::io::Error) -> String {
    format!(
        "{error}; let this user read and write the file, and make others beside it in {directory}"
    )
}

/// How every SQLite database begins.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Runs `$work` with the database behind a [`StoreHandle`] as `$store`, whichever it is; `$other` for stores
/// that are none.
macro_rules! on_database {
    ($handle:expr, $store:ident => $work:expr, $other:expr) => {
        match $handle {
            $crate::store::StoreHandle::Sqlite($store) => $work,
            $crate::store::StoreHandle::Postgres($store) => $work,
            $crate::store::StoreHandle::MySql($store) => $work,
            $crate::store::StoreHandle::Memory(_) | $crate::store::StoreHandle::Redis(_) => $other,
        }
    };
}
pub(crate) use on_database;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("postgres://ann:se:cr@et@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://ann:se cr et@db/shop", "postgres://ann:***@db/shop"),
            ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
            ("postgres://ann@db/shop", "postgres://ann@db/shop"),
            ("postgres://ann:se/cr?et@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://ann:1/2?3@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://db/x?user=a&password=pw&b=c", "postgres://db/x?user=a&password=***"),
            ("postgres://ann:pw@db/x?sslpassword=pw", "postgres://ann:***@db/x?sslpassword=***"),
            ("postgres://ann:pw@db/x?password=p@w", "postgres://***"),
            ("mysql://db/x?SSLPassword=pw", "mysql://db/x?SSLPassword=***"),
            ("host=db password=pw user=ann", "host=db password=***"),
            ("nats://token@broker:4222", "nats://***@broker:4222"),
            // Of several the last.
            ("nats://a:pw@one,nats://b:pw@two", "nats://a:***@two"),
            ("redis+cluster://:pw@a:1,:pw@b:2", "redis+cluster://:***@b:2"),
            ("ann:pw@db/shop", "***@db/shop"),
            ("jdbc:postgresql://ann:pw@db/shop", "***@db/shop"),
            // The host was forgotten.
            ("postgres://ann:secret", "postgres://ann:***"),
            // Whether this is a user with a password or a parameter nobody can tell.
            ("postgres://db:5432/shop?a=x@y", "postgres://db:***@y"),
            ("postgres://db:5432/shop?a=x", "postgres://db:5432/shop?a=x"),
            ("nats://one:4222,nats://[::1]:4222", "nats://one:4222,nats://[::1]:4222"),
            ("`redis://[::1]`:", "`redis://[::1]`:"),
            ("'root'@'localhost'", "'root'@'localhost'"),
            ("sqlite:semel.db", "sqlite:semel.db"),
            ("sqlite:/var/me@work/a.db", "sqlite:/var/me@work/a.db"),
            ("sqlite:///var/me@work/a.db", "sqlite:///var/me@work/a.db"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    proptest! {
        #[test]
        fn no_character_of_a_password_makes_it_shown(
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
                    continue; // Written like this it is a whole URL, of another user's.
                }
                // Nothing but the scheme where it could not be told apart.
                let scheme = before.find("://").map_or("", |end| &before[..end + 3]);
                let told = redacted(&url);
                prop_assert!(told == shown || told == format!("{scheme}***"), "{url:?}: {told:?}");
                // Whoever refuses it, or cannot reach it, says no more.
                let parsed = url.parse::<StoreUrl>().map(|url| format!("{url} {url:?}"));
                let failure = ExitError::usage(format_args!("--store: `{told}` is no store"));
                let refused = [parsed.unwrap_or_else(|why| why), failure.to_string()];
                // Of a short one it is no wonder that it is part of a sentence.
                for said in refused.into_iter().filter(|_| password.len() >= 10) {
                    let left = said.replace(&told, "").replace(shown, "");
                    prop_assert!(!left.contains(&password), "{url:?}: {said}");
                }
            }
        }
    }

    #[test]
    fn what_is_in_the_way_of_a_file_is_said_with_what_to_do() {
        let directory = std::env::temp_dir().join(format!("semel-way-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join("a.db");
        assert!(in_the_way(&directory).is_some_and(|said| said.contains("directory; name a file")));
        let below = in_the_way(&directory.join("b").join("a.db"));
        assert!(below.is_some_and(|said| said.contains("make it, or name another")));
        // It was to be made, and could not be.
        assert!(in_the_way(&file).is_some_and(|said| said.contains("beside it in")));
        std::fs::write(&file, "").unwrap();
        assert_eq!(in_the_way(&file), None);
        std::fs::write(&file, "a letter to the editor").unwrap();
        assert!(in_the_way(&file).is_some_and(|said| said.contains("no SQLite database")));
        std::fs::write(&file, MAGIC).unwrap();
        assert_eq!(in_the_way(&file), None);
        let denied = unwritable("/var", &std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.contains("permission denied") && denied.contains("/var"), "{denied}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_url_says_which_store_it_means() {
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
    async fn a_memory_store_has_the_room_that_its_url_gives_it() {
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
    fn a_path_may_be_written_as_sqlx_writes_it() {
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
