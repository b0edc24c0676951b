//! The Python SDK on PostgreSQL, MariaDB and MySQL: its own suite, its types, and many processes under
//! faults.

use semel_languages::{Python, succeed};
use serde_json::{Value, json};

#[tokio::test]
async fn the_python_package_passes_its_own_suite() {
    let python = Python::on(&["postgres", "mysql"]).await;
    succeed(python.command("sdk/python").args(["-m", "pytest", "-q", "--no-header"]));
    python.remove().await;
}

#[tokio::test]
async fn the_python_package_passes_its_suite_on_mysql_9() {
    let python = Python::on(&["mysql9"]).await;
    let mut command = python.command("sdk/python");
    let command = command.args(["-m", "pytest", "-q", "--no-header", "tests/test_ledger.py"]);
    succeed(command.env("SEMEL_TEST_ONLY", "mysql"));
    python.remove().await;
}

#[tokio::test]
async fn the_python_package_is_typed() {
    let python = Python::on(&[]).await;
    succeed(python.command("sdk/python").args(["-m", "mypy", "--cache-dir", "/dev/null"]));
}

/// Runs the stress client on a server, and returns its report.
async fn stress(server: &str, arguments: &[&str]) -> Value {
    let python = Python::on(&[server]).await;
    let url = python.urls().next().expect("a database").to_owned();
    stress_at(python, &url, arguments).await
}

/// Runs the stress client on the database of `python` at another URL.
async fn stress_at(python: Python, url: &str, arguments: &[&str]) -> Value {
    let mut command = python.command("tests/languages/clients");
    let report = succeed(command.args(["stress.py", "--url", url]).args(arguments));
    python.remove().await;
    println!("{report}");
    serde_json::from_str(&report).expect("the report is JSON")
}

/// Asserts what eight processes leave that make 1,200 calls on 120 keys, while work fails, connections are
/// cut and processes are killed.
fn assert_one_effect_and_one_answer_per_key(report: &Value) {
    for wrong in ["doubled", "lost", "keys_with_several_answers", "foreign_answers"] {
        assert_eq!(report[wrong], 0, "{wrong}: {report}");
    }
    assert_eq!((&report["effects"], &report["keys_answered"]), (&json!(120), &json!(120)));
    assert_eq!(report["events"], json!([120, 120]), "{report}");
    assert!(report["killed"].as_u64() > Some(0), "nothing was killed: {report}");
    assert!(report["replayed"].as_u64() > Some(500), "few calls were repeats: {report}");
}

mod faults_python_has_one_effect_per_key {
    use semel_languages::{Python, through_pgbouncer};

    use super::{assert_one_effect_and_one_answer_per_key, stress, stress_at};

    #[tokio::test]
    async fn on_postgres() {
        assert_one_effect_and_one_answer_per_key(&stress("postgres", &[]).await);
    }

    #[tokio::test]
    async fn on_postgres_through_pgbouncer() {
        let python = Python::on(&["postgres"]).await;
        let url = python.urls().next().expect("a database").to_owned();
        let (_pooler, pooled) = through_pgbouncer(&url);
        let report = stress_at(python, &pooled, &[]).await;
        assert_one_effect_and_one_answer_per_key(&report);
    }

    #[tokio::test]
    async fn on_mariadb() {
        assert_one_effect_and_one_answer_per_key(&stress("mysql", &[]).await);
    }

    #[tokio::test]
    async fn on_mysql_9() {
        assert_one_effect_and_one_answer_per_key(&stress("mysql9", &[]).await);
    }

    #[tokio::test]
    async fn without_lock_and_fence_effects_are_doubled() {
        let guards = ["--calls", "400", "--sabotage", "lock", "--sabotage", "fence"];
        // Whether two calls of a key meet is the machine's affair: as many rounds as that takes.
        for _ in 0..20 {
            let report = stress("postgres", &guards).await;
            if report["doubled"].as_u64() > Some(0) {
                return;
            }
        }
        panic!("nothing was doubled in 20 rounds: the guards are not needed");
    }
}
