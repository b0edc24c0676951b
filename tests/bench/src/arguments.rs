//! The command line.

use std::path::PathBuf;

use super::{BoxError, Pace};

/// The parsed command line.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) what: Suite,
    pub(crate) stores: Vec<StoreName>,
    /// Whether to measure with [`Pace::QUICK`](semel_bench::turns::Pace::QUICK).
    pub(crate) quick: bool,
    pub(crate) pace: Pace,
    /// The number of records of the large table, if it is measured.
    pub(crate) large: Option<u32>,
    pub(crate) json: Option<PathBuf>,
    /// The directory for the charts.
    pub(crate) plot: Option<PathBuf>,
    /// The largest number of connections of a reference client of a SQL server.
    pub(crate) connections: usize,
    /// The number of connections of the measured store, if not its default.
    pub(crate) store_connections: Option<usize>,
    /// The path of another build of this program, whose servers are measured beside those of this
    /// build.
    pub(crate) against: Option<PathBuf>,
    /// How many minutes of full load the memory of the gateway is measured for.
    pub(crate) minutes: Option<u64>,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    Ledger,
    Http,
    Gateway,
    Events,
    Ids,
    All,
}

/// A measured store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreName {
    Memory,
    Sqlite,
    Postgres,
    MySql,
    Redis,
}

const USAGE: &str = "usage: bench ledger|http|gateway|events|ids|all [--quick] [--json FILE] \
                     [--plot DIRECTORY] [--store memory|sqlite|postgres|mysql|redis]… [--large] [--full] \
                     [--connections N] [--store-connections N] [--against PROGRAM] [--minutes N] \
                     or: bench plot RESULTS.json DIRECTORY";

impl Suite {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::Http => "http",
            Self::Gateway => "gateway",
            Self::Events => "events",
            Self::Ids => "ids",
            Self::All => "all",
        }
    }
}

impl StoreName {
    const ALL: [Self; 5] = [Self::Memory, Self::Sqlite, Self::Postgres, Self::MySql, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::Redis => "redis",
        }
    }

    /// Returns the URL of the store's server.
    pub(crate) fn url(self) -> Result<String, BoxError> {
        Ok(semel_stores::server_url(self.name())?)
    }
}

impl Arguments {
    /// Returns whether this benchmark was chosen.
    pub(crate) fn wants(&self, what: Suite) -> bool {
        self.what == what || self.what == Suite::All
    }

    pub(crate) fn parse(words: &[String]) -> Result<Self, BoxError> {
        let mut words = words.iter().map(String::as_str);
        let what = match words.next() {
            Some("ledger") => Suite::Ledger,
            Some("http") => Suite::Http,
            Some("gateway") => Suite::Gateway,
            Some("events") => Suite::Events,
            Some("ids") => Suite::Ids,
            Some("all") => Suite::All,
            Some(other) => return Err(format!("there is no benchmark {other:?}; {USAGE}").into()),
            None => return Err(USAGE.into()),
        };
        let (mut stores, mut quick, mut json, mut plot) = (Vec::new(), false, None, None);
        let (mut large, mut full) = (false, false);
        let (mut connections, mut store_connections, mut against, mut minutes) =
            (16, None, None, None);
        while let Some(word) = words.next() {
            match word {
                "--quick" => quick = true,
                "--large" => large = true,
                "--full" => full = true,
                "--connections" => {
                    connections = words.next().ok_or(USAGE)?.parse::<usize>()?.max(1)
                }
                "--store-connections" => {
                    store_connections = Some(words.next().ok_or(USAGE)?.parse::<usize>()?.max(1))
                }
                "--against" => against = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
                "--minutes" => minutes = Some(words.next().ok_or(USAGE)?.parse::<u64>()?),
                "--json" => json = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
                "--plot" => plot = Some(PathBuf::from(words.next().ok_or(USAGE)?)),
                "--store" => {
                    let name = words.next().ok_or(USAGE)?;
                    let named = StoreName::ALL.into_iter().find(|which| which.name() == name);
                    stores.push(named.ok_or_else(|| format!("no store {name:?}; {USAGE}"))?);
                }
                other => return Err(format!("cannot read {other:?}; {USAGE}").into()),
            }
        }
        if stores.is_empty() {
            stores.extend(StoreName::ALL);
        }
        let many = if full { 10_000_000 } else { 1_000_000 };
        Ok(Self {
            what,
            stores,
            quick,
            pace: if quick { Pace::QUICK } else { Pace::FULL },
            large: (large || full).then_some(many),
            json,
            plot,
            connections,
            store_connections,
            against,
            minutes,
        })
    }
}
