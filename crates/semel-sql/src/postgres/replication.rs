//! Observes which acknowledged commits a failover can lose: which servers follow this one, and what
//! a commit of the store's sessions waits for.
//!
//! The store observes this when it connects, at every check and at every sweep, since standbys come
//! and go. A role that is not a member of `pg_monitor` sees that a standby is connected, but not
//! how: then the standby counts as asynchronous, and the check reports that.
//!
//! A commit that waits for a synchronous standby is special in two ways. `statement_timeout` does
//! not end the wait, so the store's own timeout does, and the outcome is unknown then. And an
//! operator may cancel the wait: the server then reports success with a mere warning, although the
//! standby has nothing. Therefore a step that took unusually long, and anything that is read while
//! a step is in doubt, counts only after a later commit was acknowledged in time: the log is
//! sequential, so a standby that has the later commit has all earlier ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use semel_core::store::{
    Error, ErrorKind, Finding, Guarantee, Replication, ReplicationState, Result, Severity,
};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::session::Session;
use super::statement::{failed, unconnected};
use crate::error::{Stage, timed_out};

/// A commit that took longer than this may have waited for a standby until the wait was cancelled.
const SLOW: Duration = Duration::from_secs(1);

/// A commit that changes no table. It is written to the log, so it waits for the same standbys as
/// any commit.
const BARRIER: &str = "select pg_logical_emit_message(true, 'semel', '')";

/// Selects the settings of this session, the walsenders that serve neither a logical slot nor a
/// base backup, and the physical slots that are not in use: their standbys are away, and may come
/// back.
const LOOK: &str = "with follower as (
    select w.application_name, w.state, w.sync_state
    from pg_stat_replication w
    where w.state is distinct from 'backup'
        and not exists (
            select from pg_replication_slots s
            where s.slot_type = 'logical' and s.active_pid = w.pid)
)
select current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
    (select count(*) from follower),
    (select count(*) from follower where sync_state is null),
    (select count(*) from follower where sync_state = 'sync'),
    (select count(*) from follower where sync_state = 'quorum'),
    (select count(*) from pg_replication_slots
        where slot_type = 'physical' and not temporary and not active),
    (select string_agg(application_name, ', ' order by application_name) from follower
        where sync_state not in ('sync', 'quorum'))";

/// The server's settings and followers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    fsync: bool,
    full_page_writes: bool,
    /// The setting `synchronous_commit` of the store's sessions.
    commit: String,
    /// The setting `synchronous_standby_names`.
    names: String,
    followers: i64,
    /// The number of followers of which this role may see only that they exist.
    hidden: i64,
    synchronous: i64,
    quorum: i64,
    /// The number of standbys that have a slot and are not connected.
    away: i64,
    /// The names of followers for which no commit waits.
    lagging: Option<String>,
}

impl Seen {
    async fn look(connection: &mut PgConnection) -> sqlx::Result<Self> {
        let row = sqlx::raw_sql(LOOK).fetch_one(connection).await?;
        Self::of(&row)
    }

    fn of(row: &PgRow) -> sqlx::Result<Self> {
        let on = |at: usize| row.try_get::<String, _>(at).map(|value| value == "on");
        Ok(Self {
            fsync: on(0)?,
            full_page_writes: on(1)?,
            commit: row.try_get(2)?,
            names: row.try_get(3)?,
            followers: row.try_get(4)?,
            hidden: row.try_get(5)?,
            synchronous: row.try_get(6)?,
            quorum: row.try_get(7)?,
            away: row.try_get(8)?,
            lagging: row.try_get(9)?,
        })
    }

    /// Returns whether a crash of the server alone can lose acknowledged commits.
    fn is_volatile(&self) -> bool {
        !self.fsync || self.commit == "off"
    }

    /// Returns whether commits of the store wait for a standby.
    fn waits(&self) -> bool {
        !self.names.trim().is_empty() && !matches!(self.commit.as_str(), "off" | "local")
    }

    /// Returns how many standbys a commit waits for, and how many are listed.
    fn wanted(&self) -> Wanted {
        Wanted::of(&self.names)
    }

    /// Returns what a failover may lose: nothing only if every connected and every listed standby
    /// has every commit. A listed standby that is away may be promoted when it is back.
    fn replication(&self) -> Replication {
        if self.followers + self.away == 0 && !self.waits() {
            return Replication::None;
        }
        let wanted = self.wanted();
        let quorum = if self.quorum <= wanted.count { self.quorum } else { 0 };
        let followed = self.synchronous + quorum == self.followers;
        if self.waits() && self.away == 0 && followed && wanted.is_everyone() {
            return Replication::Synchronous;
        }
        Replication::Asynchronous
    }

    fn findings(&self, declared: Option<Replication>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut find = |severity, code, found: String, fix: &str| {
            findings.push(Finding { severity, code, found, fix: fix.into() });
        };
        for (on, code, name) in [
            (self.fsync, "postgres-fsync", "fsync"),
            (self.full_page_writes, "postgres-full-page-writes", "full_page_writes"),
        ] {
            if !on {
                let found =
                    format!("{name} is off: a crash of the server can lose what it acknowledged");
                find(Severity::Error, code, found, "turn it on and restart the server");
            }
        }
        let (commit, code) = (&self.commit, "postgres-synchronous-commit");
        match commit.as_str() {
            "off" => {
                let found = format!("synchronous_commit is {commit}: a crash can lose commits");
                find(Severity::Error, code, found, "set it to on for this role or database");
            }
            "local" if !self.names.is_empty() => {
                let found = format!(
                    "synchronous_commit is {commit}: no commit waits for {}, and a failover can \
                     lose the last ones",
                    self.names
                );
                find(Severity::Error, code, found, "set it to on for this role or database");
            }
            "remote_write" if !self.names.is_empty() => {
                let found = format!(
                    "synchronous_commit is {commit}: a commit can be lost if the standby's machine \
                     fails together with this one"
                );
                find(Severity::Warning, code, found, "set it to on for this role or database");
            }
            _ => {}
        }
        findings.extend(self.followed(declared));
        findings
    }

    fn followed(&self, declared: Option<Replication>) -> Option<Finding> {
        let observed = self.replication();
        let severity = Severity::Warning;
        if let Some(declared) = declared {
            // An operator may know more, such as which servers can be promoted: the warning is
            // given only if it contradicts the declaration.
            let better = declared != Replication::Asynchronous;
            return (better && observed == Replication::Asynchronous).then(|| Finding {
                severity,
                code: "postgres-replication-declared",
                found: format!(
                    "replication is declared {declared:?}, and {}: acknowledged claims can be lost \
                     if one of them is promoted",
                    self.words()
                ),
                fix: "see that only a server that has every commit is ever promoted".into(),
            });
        }
        (observed == Replication::Asynchronous).then(|| Finding {
            severity,
            code: "postgres-replication",
            found: format!(
                "{}: what this server acknowledged is lost if one of them is promoted, and an \
                 operation can run again; the guarantee is best effort",
                self.words()
            ),
            fix: "let commits wait for every standby that may be promoted (FIRST n of n names in \
                  synchronous_standby_names, with synchronous_commit = on), or declare the \
                  replication if only a standby that has every commit is ever promoted"
                .into(),
        })
    }

    fn words(&self) -> String {
        if self.hidden > 0 {
            return format!(
                "{} servers follow this one, and this role may not see how (grant it pg_monitor)",
                self.followers
            );
        }
        if self.away > 0 {
            return format!("{} replication slots wait for standbys that are away", self.away);
        }
        if let Some(names) = &self.lagging {
            return format!("commits do not wait for the standby {names}");
        }
        match self.wanted() {
            Wanted { count, listed: Some(listed) } if count < listed => format!(
                "commits wait for {count} of the {listed} standbys in synchronous_standby_names"
            ),
            _ => format!("commits wait for some of {} standbys, not for all", self.followers),
        }
    }
}

/// The number of standbys that `synchronous_standby_names` requires for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// The number of standbys for which a commit waits.
    count: i64,
    /// The number of standbys listed; `None` if the list contains `*`.
    listed: Option<i64>,
}

impl Wanted {
    /// Reads `s1, s2`, `2 (s1, s2)`, `FIRST 2 (s1, s2)` and `ANY 2 (s1, s2)`. The server has
    /// validated the list.
    fn of(names: &str) -> Self {
        let (head, list) = match quoted(names).find(|(_, c, quoted)| *c == '(' && !quoted) {
            Some((at, ..)) => names.split_at(at),
            None => ("", names),
        };
        let count = head.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or(1);
        let mut listed = 1;
        for (_, c, quoted) in quoted(list) {
            match c {
                '*' if !quoted => return Self { count, listed: None },
                ',' if !quoted => listed += 1,
                _ => {}
            }
        }
        Self { count, listed: Some(listed) }
    }

    /// Returns whether a commit waits for every standby that is listed. `*` stands for any standby
    /// that connects: then only the connected ones can be counted.
    fn is_everyone(self) -> bool {
        self.listed.is_none_or(|listed| self.count >= listed)
    }
}

/// Returns the characters of a list of names with their positions, and whether they are inside
/// double quotes.
fn quoted(names: &str) -> impl Iterator<Item = (usize, char, bool)> + '_ {
    names.char_indices().scan(false, |inside, (at, c)| {
        *inside ^= c == '"';
        Some((at, c, *inside))
    })
}

/// What the store knows about the durability of acknowledged commits.
#[derive(Debug, Default)]
pub(super) struct Durability {
    replication: ReplicationState,
    volatile: AtomicBool,
    waits: AtomicBool,
    /// The number of steps so far whose outcome is or was in doubt.
    doubts: AtomicU64,
    /// How many of the steps in doubt were confirmed by a later commit.
    confirmed: AtomicU64,
    confirming: Mutex<()>,
}

/// The pause between two commits that are to confirm the steps in doubt.
const PAUSE: Duration = Duration::from_millis(50);

impl Durability {
    pub(super) fn new(declared: Option<Replication>) -> Self {
        Self { replication: ReplicationState::new(declared), ..Self::default() }
    }

    /// Observes the server, remembers the result and returns what is wrong.
    pub(super) async fn observe(
        &self,
        connection: &mut PgConnection,
    ) -> sqlx::Result<Vec<Finding>> {
        let seen = Seen::look(connection).await?;
        self.replication.observe(seen.replication());
        self.volatile.store(seen.is_volatile(), Ordering::Relaxed);
        self.waits.store(seen.waits(), Ordering::Relaxed);
        Ok(seen.findings(self.replication.declared()))
    }

    /// Returns `full`, or the weaker guarantee that the server's set-up allows.
    pub(super) fn limit(&self, full: Guarantee) -> Guarantee {
        match self.volatile.load(Ordering::Relaxed) {
            true => Guarantee::BestEffort,
            false => self.replication.effective().limit(full),
        }
    }

    /// Returns whether the answer of a step that may have written must be confirmed. Counts a step
    /// whose outcome is in doubt.
    pub(super) fn doubts<T>(&self, began: Instant, answer: &Result<T>) -> bool {
        if !self.waits.load(Ordering::Relaxed) {
            return false;
        }
        let late = began.elapsed() > SLOW;
        if late || answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Ambiguous) {
            self.doubts.fetch_add(1, Ordering::SeqCst);
        }
        late && answer.is_ok()
    }

    /// Returns whether a step is still in doubt, so that a row that is read may exist on this
    /// server alone.
    pub(super) fn in_doubt(&self) -> bool {
        self.confirmed.load(Ordering::SeqCst) < self.doubts.load(Ordering::SeqCst)
    }

    /// Waits until a commit is acknowledged that is later than every step that is in doubt now.
    pub(super) async fn confirm(
        &self,
        session: &Session,
        operation: &'static str,
        limit: Duration,
    ) -> Result<()> {
        let until = Instant::now() + limit;
        let late = |_| timed_out(Stage::Running, operation, limit);
        let _turn = timeout_at(until, self.confirming.lock()).await.map_err(late)?;
        while self.in_doubt() {
            let doubts = self.doubts.load(Ordering::SeqCst);
            let began = Instant::now();
            let made = timeout_at(until, commit(session, operation)).await;
            let made = made.unwrap_or_else(|elapsed| Err(late(elapsed)));
            // A commit that took long may have been cancelled as well.
            if made.is_ok() && began.elapsed() <= SLOW {
                self.confirmed.fetch_max(doubts, Ordering::SeqCst);
            } else if Instant::now() >= until {
                let text = "no commit is acknowledged by the synchronous standby, so what this \
                            server shows may be on it alone";
                return Err(made.err().map_or_else(
                    || Error::new(ErrorKind::Ambiguous, operation, text),
                    |error| error.with_kind(ErrorKind::Ambiguous),
                ));
            } else {
                // Pause, in case the server refuses at once.
                sleep(PAUSE).await;
            }
        }
        Ok(())
    }
}

/// Makes a commit that changes nothing, on a connection of its own.
async fn commit(session: &Session, operation: &'static str) -> Result<()> {
    let mut connection = session.connect().await.map_err(unconnected(operation))?;
    let sent = sqlx::raw_sql(BARRIER).execute(&mut connection).await;
    sent.map(drop).map_err(failed(operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen { fsync: true, full_page_writes: true, commit: "on".into(), ..Seen::default() }
    }

    fn codes(seen: &Seen) -> Vec<&'static str> {
        seen.findings(None).iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn every_set_up_is_classified() {
        use Replication::{Asynchronous, None, Synchronous};
        let one = Seen { followers: 1, ..seen() };
        let listed = Seen { names: "s1".into(), synchronous: 1, ..one.clone() };
        let two = Seen { followers: 2, names: "ANY 1 (s1, s2)".into(), quorum: 2, ..seen() };
        for (seen, replication) in [
            (seen(), None),
            (one.clone(), Asynchronous),
            (Seen { hidden: 1, ..one.clone() }, Asynchronous),
            (Seen { away: 1, ..seen() }, Asynchronous),
            (listed.clone(), Synchronous),
            (Seen { commit: "local".into(), ..listed.clone() }, Asynchronous),
            (Seen { followers: 2, ..listed.clone() }, Asynchronous),
            // Every commit waits, for a standby that is not connected.
            (Seen { names: "s1".into(), ..seen() }, Synchronous),
            (two.clone(), Asynchronous),
            (Seen { names: "any 2(s1,s2)".into(), ..two.clone() }, Synchronous),
            // One of the two is away: when it is back it may be promoted, and lacks commits.
            (Seen { followers: 1, quorum: 1, ..two }, Asynchronous),
            (
                Seen { names: "ANY 2 (s1, s2, s3)".into(), followers: 2, quorum: 2, ..seen() },
                Asynchronous,
            ),
            (Seen { names: "FIRST 1 (s1, s2)".into(), ..listed.clone() }, Asynchronous),
            (Seen { names: "s1, s2".into(), ..listed.clone() }, Asynchronous),
            (
                Seen { names: "2 (s1, s2)".into(), followers: 2, synchronous: 2, ..seen() },
                Synchronous,
            ),
            (Seen { names: r#""s1, of (2)""#.into(), ..listed.clone() }, Synchronous),
            // With any name listed, a standby that is away and has no slot cannot be detected.
            (Seen { names: "*".into(), ..listed.clone() }, Synchronous),
            (Seen { names: "*".into(), followers: 2, ..listed.clone() }, Asynchronous),
        ] {
            assert_eq!(seen.replication(), replication, "{seen:?}");
            let found = codes(&seen).contains(&"postgres-replication");
            assert_eq!(found, replication == Asynchronous, "{seen:?}");
        }
    }

    #[test]
    fn settings_with_which_a_crash_loses_commits_are_reported() {
        for (seen, code) in [
            (Seen { fsync: false, ..seen() }, "postgres-fsync"),
            (Seen { commit: "off".into(), ..seen() }, "postgres-synchronous-commit"),
        ] {
            assert!(seen.is_volatile());
            assert_eq!(codes(&seen), [code]);
        }
        let torn = Seen { full_page_writes: false, ..seen() };
        assert_eq!(codes(&torn), ["postgres-full-page-writes"]);
        let written = Seen { commit: "remote_write".into(), names: "s1".into(), ..seen() };
        assert_eq!(codes(&written), ["postgres-synchronous-commit"]);
    }
}
