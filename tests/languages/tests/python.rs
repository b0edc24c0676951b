//! The Python SDK on PostgreSQL: its own suite, its types, and many processes under faults.

use semel_languages::{Python, succeed};
use serde_json::Value;

#[tokio::test]
async fn the_python_package_passes_its_own_suite() {
    let python = Python::on_postgres().await;
    succeed(python.command("sdk/python").args(["-m", "pytest", "-q", "--no-header"]));
    python.remove().await;
}

#[tokio::test]
async fn the_python_package_is_typed() {
    let python = Python::on_postgres().await;
    let cache = python.cache();
    succeed(python.command("sdk/python").args(["-m", "mypy", "--cache-dir"]).arg(cache));
    python.remove().await;
}

/// Runs the stress client, and returns its report.
async fn stress(arguments: &[&str]) -> Value {
    let python = Python::on_postgres().await;
    let mut command = python.command("tests/languages/clients");
    let report = succeed(command.args(["stress.py", "--url", python.url()]).args(arguments));
    python.remove().await;
    println!("{report}");
    serde_json::from_str(&report).expect("the report is JSON")
}

#[tokio::test]
async fn eight_processes_that_fail_and_are_killed_have_one_effect_and_one_answer_per_key() {
    let report = stress(&[]).await;
    for wrong in ["doubled", "lost", "keys_with_several_answers", "foreign_answers"] {
        assert_eq!(report[wrong], 0, "{wrong}: {report}");
    }
    assert_eq!((&report["effects"], &report["keys_answered"]), (&120.into(), &120.into()));
    assert_eq!(report["events"], serde_json::json!([120, 120]), "{report}");
    assert!(report["killed"].as_u64() > Some(0), "nothing was killed: {report}");
    assert!(report["replayed"].as_u64() > Some(500), "few calls were repeats: {report}");
}

#[tokio::test]
async fn without_the_lock_and_the_fence_effects_are_doubled() {
    let report = stress(&["--calls", "400", "--sabotage", "lock", "--sabotage", "fence"]).await;
    assert!(report["doubled"].as_u64() > Some(0), "the guards are not needed: {report}");
}
