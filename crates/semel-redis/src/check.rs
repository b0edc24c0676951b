//! Checks a server for settings that break or weaken the ledger's guarantee.
//!
//! `INFO` has almost everything and is allowed almost everywhere; `CONFIG`, which managed services
//! refuse, is read only for what `INFO` leaves out.

use std::collections::HashMap;

use redis::{Pipeline, Value};
use semel_core::store::{Finding, Severity};

use crate::error::Failure;
use crate::reply;
use crate::transport::{Node, Transport};

/// The oldest major version with everything that the scripts use (`SET … NX GET`).
const OLDEST: u32 = 7;
/// The code of the finding that a declared replication suppresses.
const FAILOVER: &str = "redis-failover";

/// What a server reports about itself, from `INFO` and `CONFIG GET`.
#[derive(Debug, Default)]
pub(crate) struct Facts(HashMap<String, String>);

impl Facts {
    pub(crate) fn read(answers: &[Value]) -> Self {
        let mut facts = HashMap::new();
        for answer in answers {
            let text = reply::text(answer).unwrap_or_default();
            let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
            facts.extend(lines.map(|(name, value)| (name.to_owned(), value.to_owned())));
            facts.extend(reply::pairs(answer));
        }
        Self(facts)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns whether the server has replicas, or had some within `repl-backlog-ttl` (an hour by
    /// default): a replica that is away for a moment can still be promoted.
    fn has_replicas(&self) -> bool {
        let connected = self.get("connected_slaves").is_some_and(|count| count != "0");
        connected || self.get("repl_backlog_active") == Some("1")
    }

    /// Returns whether there is another copy of the data, which a failover can promote.
    pub(crate) fn is_replicated(&self) -> bool {
        self.has_replicas() || self.get("role").is_some_and(|role| role != "master")
    }

    /// Returns whether acknowledged writes are on the server's disk. A server that does not report
    /// its settings counts as one that loses them.
    pub(crate) fn is_persistent(&self) -> bool {
        self.get("aof_enabled") == Some("1") && self.get("appendfsync") == Some("always")
    }

    /// Returns the version, if it is known to be too old.
    pub(crate) fn old_version(&self) -> Option<&str> {
        let version = self.get("redis_version")?;
        let major: u32 = version.split('.').next()?.parse().ok()?;
        (major < OLDEST).then_some(version)
    }
}

/// Reads the facts of every server.
pub(crate) async fn facts(transport: &Transport) -> Result<Vec<(Node, Facts)>, Failure> {
    let mut found = Vec::new();
    for node in transport.nodes().await? {
        let mut commands = Pipeline::new();
        for section in ["server", "cluster", "replication", "persistence", "memory"] {
            commands.cmd("INFO").arg(section);
        }
        commands.cmd("CONFIG").arg("GET").arg("appendfsync");
        let answers = transport.send_all(&node, commands).await?;
        found.push((node, Facts::read(&answers)));
    }
    Ok(found)
}

/// Returns what weakens a guarantee. If an operator has declared that no failover loses anything,
/// replicas are not reported.
pub(crate) fn findings(servers: &[(Node, Facts)], declared_safe: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (node, facts) in servers {
        let (place, cluster) = match node {
            Node::Only => (String::new(), false),
            Node::Master { .. } => (format!("{}: ", node.address()), true),
        };
        findings.extend(
            judge(facts, cluster)
                .into_iter()
                .filter(|finding| !(declared_safe && finding.code == FAILOVER))
                .map(|finding| Finding { found: format!("{place}{}", finding.found), ..finding }),
        );
    }
    findings
}

fn judge(facts: &Facts, cluster: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, code, found: String, fix: &str| {
        findings.push(Finding { severity, code, found, fix: fix.to_owned() });
    };
    if let Some(version) = facts.old_version() {
        let found = format!("the server is Redis {version}");
        add(Severity::Error, "redis-version", found, "use Redis 7.0 or newer");
    }
    if facts.get("role").is_some_and(|role| role != "master") {
        let found = "the server is a replica, which refuses every write".to_owned();
        add(Severity::Error, "redis-replica", found, "connect to the master");
    }
    if let Some(policy) = facts.get("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        let limited = facts.get("maxmemory").is_some_and(|limit| limit != "0");
        let severity = if limited { Severity::Error } else { Severity::Warning };
        let found = if limited {
            format!("maxmemory-policy is {policy}: claims are thrown away when memory runs out")
        } else {
            format!("maxmemory-policy is {policy}; it does no harm only while maxmemory is 0")
        };
        add(severity, "redis-eviction", found, "CONFIG SET maxmemory-policy noeviction");
    }
    match (facts.get("aof_enabled"), facts.get("appendfsync")) {
        (Some("0"), _) => {
            let found = "appendonly is no: a crash of the server forgets what it acknowledged";
            let fix = "CONFIG SET appendonly yes, with appendfsync always";
            add(Severity::Error, "redis-aof", found.to_owned(), fix);
        }
        (_, Some("no")) => {
            let found = "appendfsync is no: a crash of the machine forgets about 30 s";
            let fix = "CONFIG SET appendfsync always, or at least everysec";
            add(Severity::Warning, "redis-fsync", found.to_owned(), fix);
        }
        // With a slow disk the server also delays the write itself, by up to two seconds, so that
        // even a crash of the process alone can lose data.
        (_, Some("everysec")) => {
            let found = "appendfsync is everysec: a crash can forget the last one to two seconds";
            let fix = "CONFIG SET appendfsync always where every claim must survive";
            add(Severity::Warning, "redis-fsync", found.to_owned(), fix);
        }
        _ => {}
    }
    if cluster || facts.has_replicas() {
        let found = "a failover can forget a claim that was acknowledged: best effort";
        let fix = "use PostgreSQL or MySQL where that must not happen; wait_replicas narrows it. \
                   If no replica is ever promoted, declare it: ?replication=none in the URL";
        add(Severity::Warning, FAILOVER, found.to_owned(), fix);
    }
    let needed = ["redis_version", "role", "maxmemory_policy", "aof_enabled", "appendfsync"];
    let unknown: Vec<_> = needed.into_iter().filter(|name| facts.get(name).is_none()).collect();
    if !unknown.is_empty() {
        let found = format!("the server does not report: {}", unknown.join(", "));
        let fix = "allow INFO and CONFIG GET, or check these settings where the server is managed";
        add(Severity::Warning, "redis-unchecked", found, fix);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "redis_version:7.0.15\nrole:master\nconnected_slaves:0\nmaxmemory:0\n\
                        maxmemory_policy:noeviction\naof_enabled:1\nappendfsync:always";

    fn codes(info: &str, cluster: bool) -> Vec<(&'static str, Severity)> {
        let facts = Facts::read(&[Value::BulkString(info.as_bytes().to_vec())]);
        judge(&facts, cluster).into_iter().map(|found| (found.code, found.severity)).collect()
    }

    #[test]
    fn a_server_with_safe_settings_has_no_findings() {
        assert_eq!(codes(GOOD, false), []);
    }

    #[test]
    fn each_unsafe_setting_has_its_own_finding() {
        use Severity::{Error, Warning};
        let cases = [
            ("redis_version:7.0.15", "redis_version:6.2.1", "redis-version", Error),
            ("role:master", "role:slave", "redis-replica", Error),
            ("policy:noeviction", "policy:allkeys-lru", "redis-eviction", Warning),
            ("aof_enabled:1", "aof_enabled:0", "redis-aof", Error),
            ("fsync:always", "fsync:everysec", "redis-fsync", Warning),
            ("fsync:always", "fsync:no", "redis-fsync", Warning),
            ("slaves:0", "slaves:2", "redis-failover", Warning),
            ("slaves:0", "slaves:0\nrepl_backlog_active:1", "redis-failover", Warning),
            ("\nappendfsync:always", "", "redis-unchecked", Warning),
        ];
        for (from, to, code, severity) in cases {
            assert_eq!(codes(&GOOD.replace(from, to), false), [(code, severity)], "{to}");
        }
        let full = GOOD.replace("maxmemory:0", "maxmemory:1000");
        let evicting = full.replace("noeviction", "volatile-ttl");
        assert_eq!(codes(&full, false), []);
        assert_eq!(codes(&evicting, false), [("redis-eviction", Error)]);
        assert_eq!(codes(GOOD, true), [("redis-failover", Warning)]);
    }
}
