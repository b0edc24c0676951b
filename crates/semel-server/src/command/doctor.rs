//! `semel doctor`: checks the store, the broker, the caches and the settings, and prints a fix for
//! each finding.
//!
//! Each store checks itself. This command reports those findings together with missing settings and
//! with records that wait for an operator. It also writes and removes a record, and builds the
//! gateway without starting it.

mod broker;
mod gateway;
mod writing;

use clap::Args;
use semel_core::outbox::{Backlog, ClaimRequest, Outbox};
use semel_core::policy::OnFailure;
use semel_core::store::{Filter, Finding, Guarantee, Inspect as _, Severity, Store as _};
use semel_core::{AnyStore, State};
use semel_ids::shared::SharedCache as _;
use serde_json::{Value, json};

use super::check::{Check, Level};
use super::unread::Unread;
use super::{PATIENCE, StoreArgs, shown};
use crate::exit::ExitError;
use crate::redact::redacted;
use crate::settings::{IdResolveSettings, ServerSettings};
use crate::store::{OpenMode, StoreHandle, StoreKind, schema};

/// The number of records on one page of the search for unreadable records.
const LOOK: u32 = 1_000;
/// The largest number of pages of that search.
const LOOKS: u32 = 32;
/// The age above which a waiting event counts as stuck.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// Check the store, the broker and the settings
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    /// Also check this broker: nats://…, amqp://…, redis://… or redis+cluster://…
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// Name of the stream, the exchange or the keys on the broker
    #[arg(long, value_name = "NAME", default_value = "semel")]
    broker_name: String,
    /// Exit with code 3 on warnings too
    #[arg(long)]
    strict: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, broker, broker_name, strict } = arguments;
    let (mut checks, mut away) = (Vec::new(), None);
    match store(&at, &settings).await {
        Ok(found) => checks.extend(found),
        Err(failure) => {
            let fix = if at.url(&settings).kind() == StoreKind::Sqlite {
                "name the file that the service uses, with a path that is valid in this directory; \
                 `semel migrate apply` creates a new one"
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
            "{} of {} failed; each is listed with its fix",
            bad,
            shown::counted(checks.len() as u64, "check")
        ))),
    }
}

const REACHABLE: &str = "check that it runs, and that address, user and password are right";

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
        // A file without the schema cannot be opened as a store.
        let lacking = schema::lacks(&url).await?;
        if lacking.iter().any(|finding| finding.severity == Severity::Error) {
            checks.extend(lacking.into_iter().map(|finding| Check::of("store", finding)));
            return Ok(checks);
        }
    }
    let handle = StoreHandle::open(&url, OpenMode::Inspect, &settings.ledger.prefix).await?;
    let ledger = handle.ledger();
    checks.push(Check::good("store", "store-reached", format!("{url} answers")));
    let found = ledger.check().await?;
    checks.push(promise(url.kind(), ledger.guarantee(), &found));
    // A missing table or column prevents all reads; a missing index does not.
    let lacking = found
        .iter()
        .any(|finding| finding.code.starts_with("sql-") && finding.severity == Severity::Error);
    checks.extend(found.into_iter().map(|finding| Check::of("store", finding)));
    if !lacking {
        checks.push(writing::ledger(&ledger).await);
        checks.extend(waiting(&ledger).await?);
        if let Some(database) = handle.database() {
            checks.push(writing::outbox(&database).await);
            checks.push(backlog(database.backlog().await?));
        }
    }
    handle.close().await;
    Ok(checks)
}

/// Reports the guarantee of the store. The guarantee does not hold if one of the findings is an
/// error.
fn promise(kind: StoreKind, guarantee: Guarantee, found: &[Finding]) -> Check {
    let broken: Vec<&str> = found
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| finding.code)
        .collect();
    if !broken.is_empty() && guarantee != Guarantee::BestEffort {
        let found = format!(
            "the guarantee is best effort in this setup ({}): a claim that was acknowledged \
             can be lost, or cannot be written",
            broken.join(", ")
        );
        let fix = "fix the errors that are listed";
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

/// Reports the records that wait for an operator.
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
            "`semel records list` shows them; no command changes a record that it cannot read";
        checks.push(Check::warning("records", "records-unreadable", unread.to_string(), fix));
    }
    if checks.is_empty() {
        checks.push(Check::good("records", "records-decided", "none is dead or uncertain"));
    }
    Ok(checks)
}

/// Searches for unreadable records, which the count of a store may leave out.
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

/// Reports the state of the outbox.
fn backlog(backlog: Backlog) -> Check {
    let Backlog { waiting, dead, oldest } = backlog;
    let fix = "`semel outbox list --status dead` shows why; then `outbox redrive` or `discard`";
    let stuck = "check that a relay runs and reaches its broker";
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

/// Checks the shared cache of the resolvers. Without the cache every resolver reads the map.
async fn cache(settings: &ServerSettings) -> Option<Check> {
    let url = settings.idresolve.shared()?;
    let cache = settings.idresolve.cache(Some(PATIENCE))?;
    let asked = async { cache?.get(&["semel:doctor"]).await };
    Some(match asked.await {
        Ok(_) => Check::good("cache", "l2-reached", format!("{} answers", redacted(url))),
        Err(error) => {
            let why = ExitError::from(error);
            let found =
                format!("{} does not answer, so every node reads the map: {why}", redacted(url));
            let fix = "check that it runs, or set l2_enabled = false";
            Check::warning("cache", "l2-unreachable", found, fix)
        }
    })
}

/// Returns advice about the settings.
fn advice(at: &StoreArgs, settings: &ServerSettings) -> Vec<Check> {
    let mut checks = Vec::new();
    let IdResolveSettings { resolver, l2_url, .. } = &settings.idresolve;
    if !at.named(settings) {
        let found = "no store is named, so it is the file semel.db in this directory";
        let fix = "name one: --store, SEMEL_STORE, or store under [ledger]";
        checks.push(Check::note("settings", "store-default", found, fix));
    }
    if resolver.enabled && resolver.cache.l2_enabled && l2_url.is_none() {
        let found = "l2_enabled without l2_url: each process caches public ids by itself, and learns of \
                     a revocation only after l1_ttl";
        let fix = "set idresolve.cache.l2_url to a Redis URL, or l2_enabled = false";
        checks.push(Check::note("settings", "l2-url-missing", found, fix));
    }
    if let OnFailure::Backoff { base, .. } = settings.relay.backoff()
        && settings.relay.lease.unwrap_or(ClaimRequest::LEASE) < base
    {
        let found = "relay.lease is shorter than relay.base_backoff";
        let fix = "set relay.lease to more than that, and to more than publishing a batch takes";
        checks.push(Check::warning("settings", "relay-lease-short", found, fix));
    }
    checks
}
