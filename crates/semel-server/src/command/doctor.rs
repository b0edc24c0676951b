//! `semel doctor`: everything that can be checked from outside, in words and with the fix.
//!
//! What a store checks about itself is its own crate's; here it is asked, together with what the
//! settings leave out and what waits for somebody.

mod broker;

use std::collections::HashSet;

use clap::Args;
use semel::outbox::{Ask, Backlog, Outbox};
use semel::policy::OnFailure;
use semel::store::{Filter, Finding, Guarantee, Inspect as _, Severity, Store as _};
use semel::{AnyStore, State};
use semel_ids::shared::Shared as _;
use serde_json::{Value, json};

use super::unread::Unread;
use super::{At, migrate, shown};
use crate::failure::Failure;
use crate::gateway::identity::Who;
use crate::gateway::settings::Gateway;
use crate::place::{Opening, Place, StoreKind, on_database, redacted};
use crate::settings::{IdResolve, Settings};

/// Records that are counted at most: a look need not read everything.
const MOST: u32 = 1_000;
/// Pages that are looked at for them at most, where a page may be empty and still have a next one.
const PAGES: u32 = 32;
/// An event that has waited longer than this is not just on its way.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

/// Check the store, the broker and the settings
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: At,
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

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let Arguments { at, broker, broker_name, strict } = arguments;
    let (mut checks, mut away) = (Vec::new(), None);
    match store(&at, &settings).await {
        Ok(found) => checks.extend(found),
        Err(failure) => {
            checks.push(unreached("store", "store-unreachable", &failure));
            away = Some(failure);
        }
    }
    if let Some(url) = &broker {
        match broker::check(url, &broker_name).await {
            Ok(found) => checks.extend(found),
            Err(failure) => {
                checks.push(unreached("broker", "broker-unreachable", &failure));
                away = away.or(Some(failure));
            }
        }
    }
    checks.extend(cache(&settings).await);
    checks.extend(advice(&at, &settings));
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
        (None, bad) => Err(Failure::findings(format_args!(
            "{} of {} came out badly; the fixes are beside them",
            bad,
            shown::counted(checks.len() as u64, "check")
        ))),
    }
}

fn unreached(about: &'static str, code: &'static str, failure: &Failure) -> Check {
    let fix = "see that it runs, and that address, user and password are right".to_owned();
    Check { about, level: Level::Error, code, found: failure.to_string(), fix }
}

fn print(checks: &[Check]) -> Result<(), Failure> {
    for Check { about, level, found, fix, .. } in checks {
        shown::line(format!("{:<8} {about}: {}", level.name(), shown::clean(found)))?;
        if !fix.is_empty() {
            shown::line(format!("{:<8} fix: {}", "", shown::clean(fix)))?;
        }
    }
    Ok(())
}

async fn store(at: &At, settings: &Settings) -> Result<Vec<Check>, Failure> {
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
    let place = Place::open(&url, Opening::Look, &settings.ledger.prefix).await?;
    let ledger = place.ledger();
    checks.push(Check::good("store", "store-reached", format!("{url} answers")));
    checks.push(promise(url.kind(), ledger.guarantee()));
    let found = ledger.check().await?;
    // Without a table or a column there is nothing to ask; without an index there is.
    let lacking = found
        .iter()
        .any(|finding| finding.code.starts_with("sql-") && finding.severity == Severity::Error);
    checks.extend(found.into_iter().map(|finding| Check::of("store", finding)));
    if !lacking {
        checks.extend(waiting(&ledger).await?);
        checks.extend(
            on_database!(&place, store => Some(backlog(store.backlog().await?)), None).flatten(),
        );
    }
    place.close().await;
    Ok(checks)
}

/// What the store promises.
fn promise(kind: StoreKind, guarantee: Guarantee) -> Check {
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
            let fix =
                "use PostgreSQL, MySQL, SQLite, or one Redis without failover, where that matters";
            return Check::warning("store", "guarantee-best-effort", found, fix);
        }
    };
    Check::good("store", "guarantee", format!("the guarantee is {words}"))
}

/// Records that nobody will come back to by himself.
async fn waiting(ledger: &AnyStore) -> Result<Vec<Check>, Failure> {
    let (mut checks, mut unread) = (Vec::new(), Unread::default());
    for (state, code, what) in [
        (State::Uncertain, "records-uncertain", "uncertain: they may or may not have happened"),
        (State::Dead, "records-dead", "dead: their attempts are used up"),
    ] {
        let (count, more) = how_many(ledger, state, &mut unread).await?;
        let name = state.name();
        if count > 0 {
            let found = format!(
                "{}{} {} {what}",
                shown::counted(count, "record"),
                if more { " or more" } else { "" },
                if count == 1 { "is" } else { "are" },
            );
            let fix =
                format!("`semel records list --state {name}`, then `records show` and `resolve`");
            checks.push(Check::warning("records", code, found, fix));
        } else if more {
            let found = format!("none of those that were looked at is {name}, and there are more");
            let fix = format!("`semel records list --state {name}` looks at all of them");
            checks.push(Check::note("records", "records-beyond", found, fix));
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

/// How many records are in this state, and whether there may be more.
async fn how_many(
    ledger: &AnyStore,
    state: State,
    unread: &mut Unread,
) -> Result<(u64, bool), Failure> {
    let filter = Filter { state: Some(state), ..Filter::default() };
    // A store may show one twice.
    let (mut seen, mut after) = (HashSet::new(), None);
    for _ in 0..PAGES {
        let page = ledger.survey(&filter, after.as_ref(), MOST).await?;
        unread.add(page.unreadable);
        seen.extend(page.entries.iter().map(|listed| listed.key.digest()));
        after = page.next;
        if after.is_none() || seen.len() >= MOST as usize {
            break;
        }
    }
    Ok((seen.len() as u64, after.is_some()))
}

/// Events that do not get away.
fn backlog(backlog: Backlog) -> Option<Check> {
    let Backlog { waiting, dead, oldest } = backlog;
    let fix = "`semel outbox list --status dead` says why; then `outbox redrive` or `discard`";
    let stuck = "see that a relay runs and reaches its broker";
    Some(match oldest {
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
    })
}

/// Whether the cache that resolvers share answers. Without it they ask the map.
async fn cache(settings: &Settings) -> Option<Check> {
    let url = settings.idresolve.shared()?;
    let asked = async { super::cache(url)?.get(&["semel:doctor"]).await };
    Some(match asked.await {
        Ok(_) => Check::good("cache", "l2-reached", format!("{} answers", redacted(url))),
        Err(error) => {
            let why = Failure::from(error);
            let found =
                format!("{} does not answer, so every node asks the map: {why}", redacted(url));
            let fix = "see that it runs, or set l2_enabled = false";
            Check::warning("cache", "l2-unreachable", found, fix)
        }
    })
}

/// What the settings leave out, or may regret.
fn advice(at: &At, settings: &Settings) -> Vec<Check> {
    let mut checks = Vec::new();
    let IdResolve { resolver, l2_url } = &settings.idresolve;
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
    if resolver.fallback_to_biz_table {
        let found = "fallback_to_biz_table is on: an unknown id costs a look into a business table";
        let fix = "turn it off once `semel map verify` is clean";
        checks.push(Check::warning("settings", "fallback-on", found, fix));
    }
    if let OnFailure::Backoff { base, .. } = settings.relay.backoff()
        && settings.relay.lease.unwrap_or(Ask::LEASE) < base
    {
        let found = "relay.lease is shorter than relay.base_backoff";
        let fix = "set relay.lease to more than that, and than publishing a batch may take";
        checks.push(Check::warning("settings", "relay-lease-short", found, fix));
    }
    checks.extend(principal(&settings.gateway));
    checks
}

/// What the gateway's callers are told apart by, and what that costs. A warning where these settings
/// are a gateway's; where they say nothing of one, what its default would cost.
fn principal(gateway: &Gateway) -> Vec<Check> {
    let ours = *gateway != Gateway::default();
    let fix = match &gateway.principal {
        Who::Header(_) | Who::Cookie(_) => {
            "with tokens or sessions that are renewed, principal = \"jwt-claim:sub\", and jwks = \
             FILE unless something in front has checked the tokens"
        }
        Who::Claim(_) => "set jwks = FILE, unless something in front has checked the tokens",
        Who::Global => "set principal to what tells callers apart, such as \"jwt-claim:sub\"",
    };
    let level = if ours { Level::Warning } else { Level::Note };
    let check = |found| Check { level, ..Check::note("gateway", "principal", found, fix) };
    let mut checks: Vec<Check> =
        gateway.principal.warnings(gateway.jwks.is_some()).into_iter().map(check).collect();
    if checks.is_empty() {
        let found = format!("callers are told apart by {}", gateway.principal);
        checks.push(Check::good("gateway", "principal", found));
    }
    checks
}
