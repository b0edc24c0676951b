//! The TypeScript SDK on PostgreSQL, MariaDB and MySQL: its own suite, and many processes under faults.

use semel_languages::{TypeScript, succeed};
use serde_json::{Value, json};

#[tokio::test]
async fn the_typescript_package_passes_its_own_suite() {
    let typescript = TypeScript::on(&["postgres", "mysql"]).await;
    succeed(typescript.npm().arg("test"));
    typescript.remove().await;
}

#[tokio::test]
async fn the_typescript_package_passes_its_suite_on_mysql_9() {
    let typescript = TypeScript::on(&["mysql9"]).await;
    succeed(typescript.node().args(["--test", "dist/test/ledger.test.js"]));
    typescript.remove().await;
}

#[tokio::test]
async fn the_typescript_package_has_only_what_is_compiled() {
    let typescript = TypeScript::on(&["postgres"]).await;
    let listed =
        succeed(typescript.npm().args(["pack", "--dry-run", "--json", "--ignore-scripts"]));
    let listed: Value = serde_json::from_str(&listed).expect("the list is JSON");
    let files = listed[0]["files"].as_array().expect("files");
    let paths: Vec<&str> = files.iter().filter_map(|file| file["path"].as_str()).collect();
    for needed in ["package.json", "dist/src/index.js", "dist/src/index.d.ts", "dist/src/pg.d.ts"] {
        assert!(paths.contains(&needed), "{needed} is not in {paths:?}");
    }
    for path in paths {
        let is_meant =
            path.starts_with("dist/src/") || ["package.json", "README.md"].contains(&path);
        assert!(is_meant, "{path} is in the package");
    }
    typescript.remove().await;
}

/// Runs the stress client on a server, and returns its report.
async fn stress(server: &str, arguments: &[&str]) -> Value {
    let typescript = TypeScript::on(&[server]).await;
    let url = typescript.urls().next().expect("a database").to_owned();
    stress_at(typescript, &url, arguments).await
}

/// Runs the stress client on the database of `typescript` at another URL.
async fn stress_at(typescript: TypeScript, url: &str, arguments: &[&str]) -> Value {
    let mut command = typescript.node();
    let report = succeed(command.args(["clients/stress.mjs", "--url", url]).args(arguments));
    typescript.remove().await;
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

mod faults_typescript_has_one_effect_per_key {
    use semel_languages::{TypeScript, through_pgbouncer};

    use super::{assert_one_effect_and_one_answer_per_key, stress, stress_at};

    #[tokio::test]
    async fn on_postgres() {
        assert_one_effect_and_one_answer_per_key(&stress("postgres", &[]).await);
    }

    #[tokio::test]
    async fn on_postgres_through_pgbouncer() {
        let typescript = TypeScript::on(&["postgres"]).await;
        let url = typescript.urls().next().expect("a database").to_owned();
        let (_pooler, pooled) = through_pgbouncer(&url);
        assert_one_effect_and_one_answer_per_key(&stress_at(typescript, &pooled, &[]).await);
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
