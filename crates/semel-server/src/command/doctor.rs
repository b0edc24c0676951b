//! `semel doctor`: everything that can be checked from outside, in words and with the fix.
//!
//! What a store checks about itself is its own crate's; here it is asked, together with what the
//! settings leave out and what waits for an operator. Nothing is believed that can be tried: a record is
//! written and removed, and the gateway is built as it would be started.

mod broker;
mod gateway;
mod writing;

use clap::Args;
use semel_core::outbox::{Ask, Backlog, Outbox};
use semel_core::policy::OnFailure;
use semel_core::store::{Filter, Finding, Guarantee, Inspect as _, Severity, Store as _};
use semel_core::{AnyStore, State};
use semel_ids::shared::SharedCache as _;
use serde_json::{Value, json};

use super::unread::Unread;
use super::{PATIENCE, StoreArgs, migrate, shown};
use crate::exit::ExitError;
use crate::settings::{IdResolveSettings, ServerSettings};
use crate::store::{OpenMode, StoreHandle, StoreKind, on_database, redacted};

/// Records in one look for those that cannot be read, and looks at most.
const LOOK: u32 = 1_000;
const LOOKS: u32 = 32;
/// An event that has waited longer than this is not just on its way.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// Check the store, the broker and the settings
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    /// A broker to check, too: nats://…, amqp://…, redis://…
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// What the stream, the exchange or the keys are called there
    #[arg(long, value_name = "NAME", default_value = "semel")]
    broker_name: String,
    /// Warnings count, too
    #[arg(long)]
    strict: bool,
}

/// How good or bad a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Good,
    Note,
    Warning,
    Error,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
struct Check {
    about: &'static str,
    level: Level,
    code: &'static str,
    found: String,
    fix: String,
}

impl Check {
    fn good(about: &'static str, code: &'static str, found: impl Into<String>) -> Self {
        Self { about, level: Level::Good, code, found: found.into(), fix: String::new() }
    }

    fn note(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { about, level: Level::Note, code, found: found.into(), fix: fix.into() }
    }

    fn warning(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::note(about, code, found, fix) }
    }

    fn error(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, ..Self::note(about, code, found, fix) }
    }

    fn of(about: &'static str, finding: Finding) -> Self {
        let Finding { severity, code, found, fix } = finding;
        let level = match severity {
            Severity::Warning => Level::Warning,
            Severity::Error => Level::Error,
        };
        Self { about, level, code, found, fix }
    }

    fn json(&self) -> Value {
        let Self { about, level, code, found, fix } = self;
        let fix = (!fix.is_empty()).then_some(fix);
        json!({ "about": about, "level": level.name(), "code": code, "found": found, "fix": fix })
    }
}

/// A finding as JSON.
pub(crate) fn finding(finding: &Finding) -> Value {
    Check::of("store", finding.clone()).json()
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, broker, broker_name, strict } = arguments;
    let (mut checks, mut away) = (Vec::new(), None);
    match store(&at, &settings).await {
        Ok(found) => checks.extend(found),
        Err(failure) => {
            let fix = if at.url(&settings).kind() == StoreKind::Sqlite {
                "name the file that the service uses, with a path that is right from here; \
                 `semel migrate apply` makes a new one"
            } else {
                REACHABLE
            };
            checks.push(unreached("store", "store-unreachable", &failure, fix));
            away = Some(failure);
        }
    }
    if let Some(url) = &broker {
        match broker::check(url, &broker_name).await {
            Ok(found) => checks.extend(found),
            Err(failure) => {
                checks.push(unreached("broker", "broker-unreachable", &failure, REACHABLE));
                away = away.or(Some(failure));
            }
        }
    }
    checks.extend(cache(&settings).await);
    checks.extend(advice(&at, &settings));
    checks.extend(gateway::check(&settings).await);
    let worst = if strict { Level::Warning } else { Level::Error };
    let bad = checks.iter().filter(|check| check.level >= worst).count();
    match at.json {
        true => {
            let list: Vec<Value> = checks.iter().map(Check::json).collect();
            shown::json(&json!({ "checks": list, "ok": bad == 0 }))?;
        }
        false => print(&checks)?,
    }
    match (away, bad) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, bad) => Err(ExitError::findings(format_args!(
            "{} of {} came out badly; the fixes are beside them",
            bad,
            shown::counted(checks.len() as u64, "check")
        ))),
    }
}

const REACHABLE: &str = "see that it runs, and that address, user and password are right";

fn unreached(about: &'static str, code: &'static str, failure: &ExitError, fix: &str) -> Check {
    Check::error(about, code, failure.to_string(), fix)
}

fn print(checks: &[Check]) -> Result<(), ExitError> {
    for Check { about, level, found, fix, .. } in checks {
        shown::line(format!("{:<8} {about}: {}", level.name(), shown::clean(found)))?;
        if !fix.is_empty() {
            shown::line(format!("{:<8} fix: {}", "", shown::clean(fix)))?;
        }
    }
    Ok(())
}

async fn store(at: &StoreArgs, settings: &ServerSettings) -> Result<Vec<Check>, ExitError> {
    let url = at.url(settings);
    let mut checks = Vec::new();
    if url.kind() == StoreKind::Sqlite {
        // A file without the schema cannot even be opened as a store.
        let lacking = migrate::lacks(&url).await?;
        if lacking.iter().any(|finding| finding.severity == Severity::Error) {
            checks.extend(lacking.into_iter().map(|finding| Check::of("store", finding)));
            return Ok(checks);
        }
    }
    let handle = StoreHandle::open(&url, OpenMode::Look, &settings.ledger.prefix).await?;
    let ledger = handle.ledger();
    checks.push(Check::good("store", "store-reached", format!("{url} answers")));
    let found = ledger.check().await?;
    checks.push(promise(url.kind(), ledger.guarantee(), &found));
    // Without a table or a column there is nothing to ask; without an index there is.
    let lacking = found
        .iter()
        .any(|finding| finding.code.starts_with("sql-") && finding.severity == Severity::Error);
    checks.extend(found.into_iter().map(|finding| Check::of("store", finding)));
    if !lacking {
        checks.push(writing::ledger(&ledger).await);
        checks.extend(waiting(&ledger).await?);
        let outbox = on_database!(
            &handle,
            store => Some((writing::outbox(store).await, backlog(store.backlog().await?))),
            None
        );
        checks.extend(outbox.into_iter().flat_map(|(written, flows)| [written, flows]));
    }
    handle.close().await;
    Ok(checks)
}

/// What the store promises, as it is set up: a finding that is an error says that the promise does not
/// hold.
fn promise(kind: StoreKind, guarantee: Guarantee, found: &[Finding]) -> Check {
    let broken: Vec<&str> = found
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| finding.code)
        .collect();
    if !broken.is_empty() && guarantee != Guarantee::BestEffort {
        let found = format!(
            "the guarantee is best effort as this store is set up ({}): a claim that was acknowledged \
             can be lost, or cannot be written",
            broken.join(", ")
        );
        let fix = "mend what is named; the fixes are beside the errors";
        return Check::error("store", "guarantee-broken", found, fix);
    }
    let database = matches!(kind, StoreKind::Sqlite | StoreKind::Postgres | StoreKind::MySql);
    let words = match guarantee {
        Guarantee::Atomic => "atomic: claim, effects and answer are one commit",
        Guarantee::Fenced if database => {
            "atomic for work in its transactions (exactly once); fenced for effects elsewhere: one \
             holder at a time, one answer, late holders refused"
        }
        Guarantee::Fenced => {
            "fenced: one holder at a time, one answer, late holders refused; an effect may run again \
             after a crash"
        }
        Guarantee::AtMostOnce => "at most once: a crashed attempt is not run again by itself",
        Guarantee::BestEffort => {
            let found = "the guarantee is best effort: a claim that was acknowledged can be lost";
            let fix = if database {
                "see the findings about durability and replication, and the guide on failover"
            } else {
                "use PostgreSQL, MySQL, SQLite, or one Redis without failover, where that matters"
            };
            return Check::warning("store", "guarantee-best-effort", found, fix);
        }
    };
    Check::good("store", "guarantee", format!("the guarantee is {words}"))
}

/// Records that nobody will come back to by himself.
async fn waiting(ledger: &AnyStore) -> Result<Vec<Check>, ExitError> {
    let (mut checks, mut unread) = (Vec::new(), Unread::default());
    for (state, code, what) in [
        (State::Uncertain, "records-uncertain", "uncertain: they may or may not have happened"),
        (State::Dead, "records-dead", "dead: their attempts are used up"),
    ] {
        let filter = Filter { state: Some(state), ..Filter::default() };
        look(ledger, &filter, &mut unread).await?;
        let (name, count) = (state.name(), ledger.tally(&filter).await?.records);
        if count > 0 {
            let are = if count == 1 { "is" } else { "are" };
            let found = format!("{} {are} {what}", shown::counted(count, "record"));
            let fix =
                format!("`semel records list --state {name}`, then `records show` and `resolve`");
            checks.push(Check::warning("records", code, found, fix));
        }
    }
    if !unread.is_empty() {
        let fix =
            "`semel records list` names them; no command changes a record that it cannot read";
        checks.push(Check::warning("records", "records-unreadable", unread.to_string(), fix));
    }
    if checks.is_empty() {
        checks.push(Check::good("records", "records-decided", "none is dead or uncertain"));
    }
    Ok(checks)
}

/// Looks for records that cannot be read, which a count may pass over.
async fn look(ledger: &AnyStore, filter: &Filter, unread: &mut Unread) -> Result<(), ExitError> {
    let mut after = None;
    for _ in 0..LOOKS {
        let page = ledger.survey(filter, after.as_ref(), LOOK).await?;
        unread.add(page.unreadable);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(())
}

/// Events that do not get away.
fn backlog(backlog: Backlog) -> Check {
    let Backlog { waiting, dead, oldest } = backlog;
    let fix = "`semel outbox list --status dead` says why; then `outbox redrive` or `discard`";
    let stuck = "see that a relay runs and reaches its broker";
    match oldest {
        _ if dead > 0 => {
            let found = format!("{} given up", shown::counted(dead, "event"));
            Check::warning("outbox", "outbox-dead", found, fix)
        }
        Some(age) if age > LONG => {
            let events = shown::counted(waiting, "event");
            let found = format!("{events} waiting, the oldest for {}", shown::span(age));
            Check::warning("outbox", "outbox-stuck", found, stuck)
        }
        Some(_) | None => Check::good(
            "outbox",
            "outbox-flows",
            format!("{} waiting", shown::counted(waiting, "event")),
        ),
    }
}

/// Whether the cache that resolvers share answers. Without it they ask the map.
async fn cache(settings: &ServerSettings) -> Option<Check> {
    let url = settings.idresolve.shared()?;
    let cache = settings.idresolve.cache(Some(PATIENCE))?;
    let asked = async { cache?.get(&["semel:doctor"]).await };
    Some(match asked.await {
        Ok(_) => Check::good("cache", "l2-reached", format!("{} answers", redacted(url))),
        Err(error) => {
            let why = ExitError::from(error);
            let found =
                format!("{} does not answer, so every node asks the map: {why}", redacted(url));
            let fix = "see that it runs, or set l2_enabled = false";
            Check::warning("cache", "l2-unreachable", found, fix)
        }
    })
}

/// What the settings leave out, or may regret.
fn advice(at: &StoreArgs, settings: &ServerSettings) -> Vec<Check> {
    let mut checks = Vec::new();
    let IdResolveSettings { resolver, l2_url, .. } = &settings.idresolve;
    if !at.named(settings) {
        let found = "no store is named, so it is the file semel.db in this directory";
        let fix = "name one: --store, SEMEL_STORE, or store under [ledger]";
        checks.push(Check::note("settings", "store-default", found, fix));
    }
    if resolver.enabled && resolver.cache.l2_enabled && l2_url.is_none() {
        let found = "l2_enabled, but there is no l2_url: public ids are remembered by each process \
                     alone, and what is revoked is known elsewhere only after l1_ttl";
        let fix = "set idresolve.cache.l2_url to a Redis URL, or l2_enabled = false";
        checks.push(Check::note("settings", "l2-url-missing", found, fix));
    }
    if let OnFailure::Backoff { base, .. } = settings.relay.backoff()
        && settings.relay.lease.unwrap_or(Ask::LEASE) < base
    {
        let found = "relay.lease is shorter than relay.base_backoff";
        let fix = "set relay.lease to more than that, and than publishing a batch may take";
        checks.push(Check::warning("settings", "relay-lease-short", found, fix));
    }
    checks
}
