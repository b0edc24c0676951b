//! Observes which servers could take over from this one, and what they would lack.
//!
//! Reads variables and counters that every account may see. A replica that is away at the moment,
//! and one that follows a replica, are not seen: declare the replication for those.

use semel_core::store::{Finding, Replication, Result, Severity};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::session::{Flavour, failed};
use super::variables::{finding, is_on};

/// A semi-synchronous wait that ends earlier than this guarantees nothing: a replica can be away
/// for that long.
const PATIENCE_MS: u64 = 60 * 60 * 1000;

/// What the server reports about its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The number of replicas that read the server's binary log.
    replicas: u64,
    /// Whether a commit waits for replicas at present, and whether it is configured to.
    semi_sync: SemiSync,
    /// The number of members of the server's Galera cluster or replication group; 0 if it is in
    /// none.
    members: u64,
    /// Whether a read may be older than what another node has acknowledged.
    stale_reads: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SemiSync {
    enabled: bool,
    active: bool,
    /// The number of replicas for which a commit waits.
    waits_for: u64,
    timeout_ms: u64,
}

/// The variables and counters to read, by the names that either server has for them.
const ASKED: [&str; 18] = [
    "slaves_connected",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_master_status",
    "rpl_semi_sync_master_clients",
    "rpl_semi_sync_master_timeout",
    "rpl_semi_sync_master_wait_for_slave_count",
    "rpl_semi_sync_source_enabled",
    "rpl_semi_sync_source_status",
    "rpl_semi_sync_source_clients",
    "rpl_semi_sync_source_timeout",
    "rpl_semi_sync_source_wait_for_replica_count",
    "wsrep_on",
    "wsrep_cluster_size",
    "wsrep_ready",
    "wsrep_sync_wait",
    "group_replication_group_name",
    "group_replication_consistency",
    "log_bin",
];

/// Reads what the server reports about its replicas.
pub(crate) async fn observe(
    connection: &mut MySqlConnection,
    flavour: Flavour,
) -> Result<Observed> {
    let mut said = Vec::new();
    let names = ASKED.map(|name| format!("'{name}'")).join(",");
    for list in ["SHOW GLOBAL STATUS", "SHOW GLOBAL VARIABLES"] {
        let text = AssertSqlSafe(format!("{list} WHERE Variable_name IN ({names})"));
        let rows = sqlx::raw_sql(text).fetch_all(&mut *connection).await;
        for row in rows.map_err(|error| failed("check", error))? {
            let read = |i| row.try_get::<String, _>(i).map_err(|error| failed("check", error));
            said.push((read(0)?.to_ascii_lowercase(), read(1)?));
        }
    }
    let mut observed = judge(&said);
    if flavour == Flavour::MySql {
        // MySQL has no counter of replicas. An account without the privilege to see all threads
        // sees only its own.
        let dumps = "SELECT COUNT(*) FROM information_schema.processlist \
                     WHERE command LIKE 'Binlog Dump%'";
        observed.replicas = observed.replicas.max(count(connection, dumps).await);
        let in_group = |(name, value): &(String, String)| {
            name == "group_replication_group_name" && !value.is_empty()
        };
        if said.iter().any(in_group) {
            let members = "SELECT COUNT(*) FROM performance_schema.replication_group_members \
                           WHERE member_state = 'ONLINE'";
            observed.members = count(connection, members).await;
        }
    }
    Ok(observed)
}

/// Runs a query that counts; returns 0 if the account may not run it.
async fn count(connection: &mut MySqlConnection, text: &'static str) -> u64 {
    let counted = sqlx::query_scalar::<_, i64>(text).fetch_one(connection).await;
    counted.map_or(0, i64::unsigned_abs)
}

fn judge(said: &[(String, String)]) -> Observed {
    let text = |names: &[&str]| {
        let found = said.iter().find(|(name, _)| names.contains(&name.as_str()));
        found.map_or("", |(_, value)| value.as_str())
    };
    let number = |names: &[&str]| text(names).parse::<u64>().unwrap_or(0);
    let [enabled, status, clients, timeout] =
        ["enabled", "status", "clients", "timeout"].map(|what| {
            [format!("rpl_semi_sync_master_{what}"), format!("rpl_semi_sync_source_{what}")]
        });
    let [enabled, status, clients, timeout] =
        [&enabled, &status, &clients, &timeout].map(|names| [names[0].as_str(), names[1].as_str()]);
    let waits = number(&[
        "rpl_semi_sync_master_wait_for_slave_count",
        "rpl_semi_sync_source_wait_for_replica_count",
    ]);
    let galera = is_on(text(&["wsrep_on"]));
    let members = if galera { number(&["wsrep_cluster_size"]) } else { 0 };
    let group = !text(&["group_replication_group_name"]).is_empty();
    Observed {
        replicas: number(&["slaves_connected"]).max(number(&clients)),
        semi_sync: SemiSync {
            enabled: is_on(text(&enabled)),
            active: is_on(text(&status)) && number(&clients) > 0,
            waits_for: waits.max(1),
            timeout_ms: number(&timeout),
        },
        members,
        stale_reads: (galera && number(&["wsrep_sync_wait"]) & 1 == 0)
            || (group && text(&["group_replication_consistency"]) == "EVENTUAL"),
    }
}

impl Observed {
    /// Returns what a failover may lose.
    pub(crate) fn replication(&self) -> Replication {
        let SemiSync { enabled, active, waits_for, .. } = self.semi_sync;
        if self.members > 1 {
            // A write is acknowledged after it was ordered among all members.
            return Replication::Synchronous;
        }
        match self.replicas {
            // Commits should wait for a replica, but none is connected.
            0 if enabled => Replication::Asynchronous,
            0 => Replication::None,
            replicas if active && waits_for >= replicas => Replication::Synchronous,
            _ => Replication::Asynchronous,
        }
    }

    /// Returns what breaks or weakens a guarantee.
    pub(crate) fn findings(&self, declared: Option<Replication>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let SemiSync { enabled, active, waits_for, timeout_ms } = self.semi_sync;
        let lossy = self.replication() == Replication::Asynchronous;
        if lossy && declared.is_none() {
            let found = match (self.replicas, enabled && active) {
                (0, _) => "semi-synchronous replication is on and no replica answers: what is \
                           acknowledged now is on this server alone"
                    .to_owned(),
                (replicas, true) => format!(
                    "commits wait for {waits_for} of {replicas} replicas: one that lacks \
                     acknowledged claims could be promoted"
                ),
                (replicas, false) => format!(
                    "{replicas} replicas follow without semi-synchronous replication: a failover \
                     loses acknowledged claims, and their work runs again"
                ),
            };
            let fix = "let commits wait for every replica that can be promoted (rpl_semi_sync_*), or \
                       declare the store's replication: none if no replica is ever promoted, \
                       synchronous if only up-to-date ones are";
            findings.push(finding(Severity::Error, "mysql-async-replica", found, fix));
        }
        if lossy && matches!(declared, Some(Replication::Synchronous)) {
            let found = "replication is declared synchronous, but commits do not wait for every \
                         replica at present"
                .to_owned();
            let fix = "make sure that only an up-to-date replica is ever promoted";
            findings.push(finding(Severity::Warning, "mysql-replication-declared", found, fix));
        }
        if enabled && timeout_ms < PATIENCE_MS && self.members <= 1 {
            let found = format!(
                "a commit that no replica confirms is acknowledged all the same after {timeout_ms} ms"
            );
            let fix =
                "set rpl_semi_sync_master_timeout (MySQL: rpl_semi_sync_source_timeout) to days";
            findings.push(finding(Severity::Warning, "mysql-semi-sync-timeout", found, fix));
        }
        if self.stale_reads && self.members > 1 {
            let found =
                "a read on one node may miss what another has acknowledged: a repeat may be \
                         answered `InProgress` for a moment after the first call was answered"
                    .to_owned();
            let fix = "set wsrep_sync_wait = 1 (Galera) or group_replication_consistency = BEFORE \
                       (Group Replication), or send all callers to one node";
            findings.push(finding(Severity::Warning, "mysql-stale-reads", found, fix));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &[(&str, &str)]) -> Observed {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        judge(&said.iter().map(owned).collect::<Vec<_>>())
    }

    fn codes(observed: &Observed) -> Vec<&'static str> {
        observed.findings(None).iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_server_without_replicas_loses_nothing() {
        let alone = of(&[("slaves_connected", "0"), ("wsrep_on", "OFF")]);
        assert_eq!(alone.replication(), Replication::None);
        assert_eq!(codes(&alone), [""; 0]);
    }

    #[test]
    fn a_replica_counts_as_synchronous_only_while_commits_wait_for_it() {
        let asynchronous = of(&[("slaves_connected", "1")]);
        assert_eq!(asynchronous.replication(), Replication::Asynchronous);
        assert_eq!(codes(&asynchronous), ["mysql-async-replica"]);
        let semi = |status, clients, timeout| {
            of(&[
                ("slaves_connected", "1"),
                ("rpl_semi_sync_master_enabled", "ON"),
                ("rpl_semi_sync_master_status", status),
                ("rpl_semi_sync_master_clients", clients),
                ("rpl_semi_sync_master_timeout", timeout),
            ])
        };
        assert_eq!(semi("ON", "1", "999999999").replication(), Replication::Synchronous);
        assert_eq!(codes(&semi("ON", "1", "999999999")), [""; 0]);
        assert_eq!(codes(&semi("ON", "1", "10000")), ["mysql-semi-sync-timeout"]);
        assert_eq!(semi("OFF", "0", "999999999").replication(), Replication::Asynchronous);
        let of_two = of(&[
            ("slaves_connected", "2"),
            ("rpl_semi_sync_source_enabled", "ON"),
            ("rpl_semi_sync_source_status", "ON"),
            ("rpl_semi_sync_source_clients", "2"),
            ("rpl_semi_sync_source_timeout", "999999999"),
            ("rpl_semi_sync_source_wait_for_replica_count", "1"),
        ]);
        assert_eq!(of_two.replication(), Replication::Asynchronous);
    }

    #[test]
    fn a_cluster_is_synchronous_and_stale_reads_are_reported() {
        let galera = |wait| {
            of(&[("wsrep_on", "ON"), ("wsrep_cluster_size", "3"), ("wsrep_sync_wait", wait)])
        };
        assert_eq!(galera("0").replication(), Replication::Synchronous);
        assert_eq!(codes(&galera("0")), ["mysql-stale-reads"]);
        assert_eq!(codes(&galera("1")), [""; 0]);
    }

    #[test]
    fn a_declaration_counts_and_a_contradiction_is_reported() {
        let asynchronous = of(&[("slaves_connected", "1")]);
        assert_eq!(asynchronous.findings(Some(Replication::None)), []);
        let doubted = asynchronous.findings(Some(Replication::Synchronous));
        assert_eq!(doubted[0].code, "mysql-replication-declared");
    }
}
