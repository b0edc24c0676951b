//! Where things are kept, chosen by URL: a store of each kind, opened the way it is used here.
//!
//! A URL may hold a password, so none is shown as it was written. What a store can do is its own
//! crate's business.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use semel::store::memory::MemoryStore;
use semel::store::{AnyStore, Finding};
use semel_redis::RedisStore;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use crate::command::doctor::by_command;
use crate::failure::Failure;

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
    /// `memory:`, gone with the process.
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
            "memory" if text == "memory:" => StoreKind::Memory,
            "sqlite" if text.len() > "sqlite:".len() => StoreKind::Sqlite,
            "postgres" | "postgresql" if text.contains("://") => StoreKind::Postgres,
            "mysql" | "mariadb" if text.contains("://") => StoreKind::MySql,
            "redis" | "rediss" | "redis+cluster" if text.contains("://") => StoreKind::Redis,
            _ => {
                return Err(format!(
                    "`{}` is no store; one of sqlite:PATH, postgres://…, mysql://…, redis://…, \
                     redis+cluster://…, memory:",
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
        StoreKind::Memory => Ok(()),
        // A file's name may hold one, and sqlx's parameters are not ours.
        StoreKind::Sqlite if text.contains('?') => wrong("it takes no parameters".to_owned()),
        StoreKind::Sqlite => Ok(()),
        StoreKind::Postgres => match text.parse::<sqlx::postgres::PgConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(crate::failure::chain(&error)),
        },
        StoreKind::MySql => match text.parse::<sqlx::mysql::MySqlConnectOptions>() {
            Ok(_) => Ok(()),
            Err(error) => wrong(crate::failure::chain(&error)),
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

/// A URL without its password, for people and logs. Whatever it makes of a URL that is none, it shows
/// rather too little.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        // Half a URL, as it is pasted: the half before `@` is the one to hide.
        let pasted = url.rsplit_once('@').filter(|(before, _)| before.contains(':'));
        return pasted.map_or_else(|| url.to_owned(), |(_, after)| format!("***@{after}"));
    };
    if rest.contains("://") {
        return url.split(',').map(redacted).collect::<Vec<_>>().join(",");
    }
    if scheme.ends_with("sqlite") {
        return url.to_owned();
    }
    let shown = match userinfo(rest) {
        None => rest.to_owned(),
        Some(at) => {
            let user = match rest[..at].split_once(':') {
                Some((user, _)) if !user.contains(['/', '?', '#']) => format!("{user}:***"),
                // A name alone is a name to a database, and a token to others.
                None if scheme.contains("sql") || scheme.contains("postgres") => {
                    rest[..at].to_owned()
                }
                Some(_) | None => "***".to_owned(),
            };
            format!("{user}{}", &rest[at..])
        }
    };
    format!("{scheme}://{}", without_parameters(&shown))
}

/// Where the `@` after the password is. A password may hold one that nobody escaped, and so it may a
/// slash: then it seems to be in the path.
fn userinfo(rest: &str) -> Option<usize> {
    let head = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let path = rest.find('?').unwrap_or(rest.len());
    let port = rest[..head].rsplit_once(':').map(|(_, port)| port);
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    // What stands where the port does and is none, is the beginning of a password.
    let reach = if port.is_none_or(is_port) { path } else { rest.len() };
    rest[..head].rfind('@').or_else(|| rest[..reach].rfind('@'))
}

/// Some clients take a password as a parameter.
fn without_parameters(rest: &str) -> String {
    let Some((before, parameters)) = rest.split_once('?') else { return rest.to_owned() };
    let parameter = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if SECRET.iter().any(|word| name.to_ascii_lowercase().contains(word)) => {
            format!("{name}=***")
        }
        Some(_) | None => parameter.to_owned(),
    };
    let parameters: Vec<String> = parameters.split('&').map(parameter).collect();
    format!("{before}?{}", parameters.join("&"))
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
pub enum Opening {
    /// By a service: what is missing (a SQLite file, tables) is made.
    Serve,
    /// By an operator: a SQLite file that is not there is an error, and nothing is made.
    Look,
}

/// An open store of some kind.
#[derive(Clone, Debug)]
pub enum Place {
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

impl Place {
    /// Opens the store at `url`; `prefix` is what a Redis ledger's keys begin with.
    ///
    /// # Errors
    /// It cannot be reached or is no ledger, said with its address.
    pub async fn open(url: &StoreUrl, opening: Opening, prefix: &str) -> Result<Self, Failure> {
        let opened = Self::try_open(url, opening, prefix).await;
        opened.map_err(|failure| failure.during(format_args!("cannot open {url}")))
    }

    async fn try_open(url: &StoreUrl, opening: Opening, prefix: &str) -> Result<Self, Failure> {
        let serve = opening == Opening::Serve;
        Ok(match url.kind {
            StoreKind::Memory => Place::Memory(MemoryStore::new()),
            StoreKind::Sqlite => {
                let path = url.path().map(PathBuf::from).unwrap_or_default();
                if !serve && !path.exists() {
                    return Err(Failure::unreachable("there is no such file"));
                }
                // Asked before it is opened, which turns a file into one with a write-ahead log:
                // somebody else's database is not to be changed by looking.
                if !serve && let Some(lacking) = SqliteStore::verify(&path).await?.first() {
                    let Finding { found, fix, .. } = lacking;
                    return Err(Failure::failed(format_args!("{found}; {}", by_command(fix))));
                }
                Place::Sqlite(SqliteStore::builder(path).migrate(serve).open().await?)
            }
            StoreKind::Postgres => {
                let store = PgStore::connect(&url.text).await?;
                // Asked first: a service's user need not be one who may make tables.
                if serve && !store.verify().await?.is_empty() {
                    store.migrate().await?;
                }
                Place::Postgres(store)
            }
            StoreKind::MySql => {
                let store = MySqlStore::connect(&url.text).await?;
                // Asked first: a service's user need not be one who may make tables.
                if serve && !store.verify().await?.is_empty() {
                    store.migrate().await?;
                }
                Place::MySql(store)
            }
            StoreKind::Redis => {
                Place::Redis(RedisStore::builder().prefix(prefix).connect(&url.text).await?)
            }
        })
    }

    /// Its ledger, whichever it is.
    pub fn ledger(&self) -> AnyStore {
        match self.clone() {
            Place::Memory(store) => AnyStore::new(store),
            Place::Sqlite(store) => AnyStore::new(store),
            Place::Postgres(store) => AnyStore::new(store),
            Place::MySql(store) => AnyStore::new(store),
            Place::Redis(store) => AnyStore::new(store),
        }
    }

    /// Finishes what is under way and closes files.
    pub async fn close(&self) {
        if let Place::Sqlite(store) = self {
            store.close().await;
        }
    }
}

/// Runs `$work` with the database behind a [`Place`] as `$store`, whichever it is; `$other` for stores
/// that are none.
macro_rules! on_database {
    ($place:expr, $store:ident => $work:expr, $other:expr) => {
        match $place {
            $crate::place::Place::Sqlite($store) => $work,
            $crate::place::Place::Postgres($store) => $work,
            $crate::place::Place::MySql($store) => $work,
            $crate::place::Place::Memory(_) | $crate::place::Place::Redis(_) => $other,
        }
    };
}
pub(crate) use on_database;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("postgres://ann:se:cr@et@db/shop", "postgres://ann:***@db/shop"),
            ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
            ("postgres://db/shop?a=x@y", "postgres://db/shop?a=x@y"),
            ("postgres://db:5432/shop?a=x@y", "postgres://db:5432/shop?a=x@y"),
            ("postgres://ann@db/shop", "postgres://ann@db/shop"),
            ("postgres://ann:se/cr?et@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://ann:1/2@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://db/x?user=a&password=pw&b=c", "postgres://db/x?user=a&password=***&b=c"),
            ("mysql://db/x?SSLPassword=pw", "mysql://db/x?SSLPassword=***"),
            ("nats://token@broker:4222", "nats://***@broker:4222"),
            ("nats://a:pw@one,nats://b:pw@two", "nats://a:***@one,nats://b:***@two"),
            ("redis+cluster://:pw@a:1,:pw@b:2", "redis+cluster://:***@b:2"),
            ("ann:pw@db/shop", "***@db/shop"),
            ("sqlite:semel.db", "sqlite:semel.db"),
            ("sqlite:///var/me@work/a.db", "sqlite:///var/me@work/a.db"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn a_url_says_which_store_it_means() {
        let kind = |text: &str| text.parse::<StoreUrl>().map(|url| url.kind());
        assert_eq!(kind("sqlite:semel.db"), Ok(StoreKind::Sqlite));
        assert_eq!(kind("postgresql://db/x"), Ok(StoreKind::Postgres));
        assert_eq!(kind("mariadb://db/x"), Ok(StoreKind::MySql));
        assert_eq!(kind("redis+cluster://a,b"), Ok(StoreKind::Redis));
        assert_eq!(kind("memory:"), Ok(StoreKind::Memory));
        let none = ["", "sqlite:", "semel.db", "memory:x", "mongodb://x", "sqlite:a.db?mode=ro"];
        let garbled =
            ["postgres:db", "postgres://db:x/y", "mysql://[", "redis://", "redis://a:b:c"];
        for wrong in none.into_iter().chain(garbled) {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
        let refused = kind("postgres://ann:se/cret@db").unwrap_err();
        assert!(!refused.contains("cret"), "{refused}");
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
