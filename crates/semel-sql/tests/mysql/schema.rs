//! Tests migrations, and the findings about a server or a schema that is not as required.

use semel_core::store::{ErrorKind, Store, TransactionalStore as _};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use semel_testkit::fixture::run;

use crate::fixture::{TestDatabase, at, claim, key};

#[test]
fn several_instances_may_migrate_at_once() {
    run(async {
        let database = TestDatabase::bare().await;
        let url = database.url();
        let instances: Vec<_> = (0..8)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move {
                    let store = MySqlStore::connect(&url).await.expect("the server answers");
                    store.migrate().await.expect("migrated")
                })
            })
            .collect();
        let mut applied = Vec::new();
        for instance in instances {
            applied.extend(instance.await.expect("no panic"));
        }
        assert_eq!(applied, [1, 2, 3, 4, 5], "each migration is applied by exactly one instance");
        assert_eq!(database.connect().await.verify().await.expect("verify"), []);
    });
}

#[test]
fn the_printed_script_is_the_schema_and_the_one_in_the_docs() {
    run(async {
        let database = TestDatabase::bare().await;
        // A server knows no delimiters: they are the clients'.
        let script =
            MySqlStore::schema().replace("DELIMITER //\n", "").replace("//\nDELIMITER ;\n", "");
        database.run(&script).await;
        let store = database.connect().await;
        assert_eq!(store.verify().await.expect("verify"), []);
        assert_eq!(store.migrate().await.expect("migrate"), [0; 0]);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql/mysql.sql");
        if std::env::var_os("SEMEL_BLESS").is_some() {
            std::fs::write(path, MySqlStore::schema()).expect("writable");
        }
        let kept = std::fs::read_to_string(path).expect("the script is in the docs");
        assert!(kept == MySqlStore::schema(), "{path} is old: run this test with SEMEL_BLESS=1");
    });
}

#[test]
fn verify_names_what_is_missing_or_changed() {
    run(async {
        let database = TestDatabase::bare().await;
        let store = database.connect().await;
        let words = |findings: Vec<semel_core::store::Finding>| {
            findings.into_iter().map(|f| f.found).collect::<Vec<_>>().join("; ")
        };
        let empty = words(store.verify().await.expect("verify"));
        assert!(empty.contains("migration 1 (ledger) was never applied"), "{empty}");
        assert!(empty.contains("table semel_record does not exist"), "{empty}");
        store.migrate().await.expect("migrate");
        database.run("ALTER TABLE semel_record DROP INDEX semel_record_sweep").await;
        let index = words(store.verify().await.expect("verify"));
        assert!(index.contains("no index semel_record_sweep"), "{index}");
        database.run("UPDATE semel_migration SET checksum = 'other'").await;
        let changed = words(store.verify().await.expect("verify"));
        assert!(changed.contains("applied with other statements"), "{changed}");
        let error = store.migrate().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
    });
}

#[test]
fn a_table_without_its_key_or_its_generated_columns_is_an_error() {
    use semel_core::store::Severity;
    run(async {
        for (change, code) in [
            ("DROP PRIMARY KEY", "mysql-primary-key"),
            ("DROP PRIMARY KEY, ADD PRIMARY KEY (digest, attempt_id)", "mysql-primary-key"),
            ("DROP PRIMARY KEY, ADD PRIMARY KEY (digest(8))", "mysql-primary-key"),
            ("DROP PRIMARY KEY, ADD KEY (digest)", "mysql-primary-key"),
            ("MODIFY sweep_at BIGINT NULL", "mysql-not-generated"),
            ("DROP COLUMN attention", "mysql-not-generated"),
        ] {
            let database = TestDatabase::new().await;
            let store = database.connect().await;
            database.run(&format!("ALTER TABLE semel_record {change}")).await;
            let findings = store.verify().await.expect("verify");
            let found = findings.iter().find(|finding| finding.code == code);
            let found = found.unwrap_or_else(|| panic!("{change}: {findings:?}"));
            assert_eq!(found.severity, Severity::Error, "{change}");
            let checked = store.check().await.expect("check");
            assert!(checked.iter().any(|finding| finding.code == code), "{change}: {checked:?}");
        }
    });
}

#[test]
fn a_foreign_table_of_the_same_name_is_refused_and_a_half_done_migration_is_not() {
    run(async {
        let database = TestDatabase::bare().await;
        database.run("CREATE TABLE semel_record (digest INT, note TEXT)").await;
        let store = database.connect().await;
        let error = store.migrate().await.expect_err("not ours");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("did not make"), "{error}");
        let again = store.migrate().await.expect_err("it was not noted as done");
        assert_eq!(again.kind(), ErrorKind::Misconfigured, "{again}");

        // The outbox was created, and the process ended before that was noted.
        let database = TestDatabase::bare().await;
        database.run(include_str!("../../migrations/mysql/0001_ledger.sql")).await;
        database.run(include_str!("../../migrations/mysql/0002_outbox.sql")).await;
        assert_eq!(database.connect().await.migrate().await.expect("ours"), [1, 2, 3, 4, 5]);

        let database = TestDatabase::new().await;
        database.run("DELETE FROM semel_migration").await;
        let store = database.connect().await;
        assert_eq!(store.migrate().await.expect("ours"), [1, 2, 3, 4, 5]);
        database.run("DELETE FROM semel_migration").await;
        database.run("ALTER TABLE semel_record DROP PRIMARY KEY").await;
        let error = store.migrate().await.expect_err("one digest could be granted twice");
        assert!(error.to_string().contains("has no primary key"), "{error}");
    });
}

#[test]
fn a_database_without_our_schema_is_misconfigured_and_nothing_is_claimed() {
    run(async {
        let database = TestDatabase::bare().await;
        let store = database.connect().await;
        let error = store.open(&crate::fixture::draft(&key("a"))).await.expect_err("no table");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    });
}

#[test]
fn a_wrong_url_and_a_missing_server_are_different_errors() {
    run(async {
        for url in ["postgres://root@127.0.0.1/x", "mysql://root@127.0.0.1:1", "mysql://:::"] {
            let error = MySqlStore::connect(url).await.expect_err("wrong");
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{url}: {error}");
        }
        let error = MySqlStore::connect("mysql://root@127.0.0.1:1/x").await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    });
}

#[test]
fn a_column_with_a_collation_is_a_finding() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let codes = |findings: Vec<semel_core::store::Finding>| {
            findings.into_iter().map(|f| f.code).collect::<Vec<_>>()
        };
        let before = codes(store.check().await.expect("check"));
        assert!(!before.contains(&"mysql-collation"), "{before:?}");
        database
            .run("ALTER TABLE semel_record MODIFY id VARCHAR(255) COLLATE utf8mb4_unicode_ci NOT NULL")
            .await;
        let after = codes(store.check().await.expect("check"));
        assert!(after.contains(&"mysql-collation"), "{after:?}");
    });
}

#[test]
fn an_id_map_that_could_merge_ids_is_an_error() {
    use semel_core::store::Severity;
    run(async {
        for (change, code) in [
            ("DROP PRIMARY KEY, ADD KEY (resource_type, tenant, public_id)", "mysql-unique-key"),
            ("DROP PRIMARY KEY, ADD PRIMARY KEY (resource_type, public_id)", "mysql-unique-key"),
            (
                "DROP PRIMARY KEY, ADD PRIMARY KEY (resource_type, tenant, public_id(8))",
                "mysql-unique-key",
            ),
            ("DROP KEY semel_id_map_internal", "mysql-unique-key"),
            ("MODIFY tenant VARCHAR(64) COLLATE utf8mb4_bin NOT NULL", "mysql-collation"),
            ("MODIFY public_id VARCHAR(64) COLLATE utf8mb4_unicode_ci NOT NULL", "mysql-collation"),
        ] {
            let database = TestDatabase::new().await;
            let store = database.connect().await;
            database.run(&format!("ALTER TABLE semel_id_map {change}")).await;
            let findings = store.verify().await.expect("verify");
            let found = findings.iter().find(|finding| finding.code == code);
            let found = found.unwrap_or_else(|| panic!("{change}: {findings:?}"));
            assert_eq!(found.severity, Severity::Error, "{change}");
        }
    });
}

#[test]
fn a_read_only_session_is_misconfigured() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let user = format!("reader_{}", database.number("SELECT CONNECTION_ID()").await);
        database.run(&format!("CREATE USER {user}; GRANT SELECT ON *.* TO {user}")).await;
        let url = database.url().replace("root@", &format!("{user}@"));
        let reader = MySqlStore::connect(&url).await.expect("may connect");
        let error = reader.open(&crate::fixture::draft(&key("a"))).await.expect_err("refused");
        database.run(&format!("DROP USER {user}")).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(store.peek(&key("a")).await.expect("peek").is_none());
    });
}

#[test]
fn a_damaged_column_is_named_and_neither_key_nor_value_is_shown() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let key = key("very-secret");
        claim(&store, &key).await;
        for (damage, column) in [
            ("state = 9", "state"),
            ("state = 0, on_crash = 7", "on_crash"),
            ("on_crash = 0, lease_until = NULL", "lease_until"),
            ("lease_until = 1, fingerprint = 'xy'", "fingerprint"),
            ("fingerprint = '', owner = x'ff'", "owner"),
        ] {
            database.run(&format!("UPDATE semel_record SET {damage} WHERE {}", at(&key))).await;
            let error = store.peek(&key).await.expect_err(damage);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(&format!("column {column}")), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
            let opened = store.open(&crate::fixture::draft(&key)).await.expect_err(damage);
            assert_eq!(opened.kind(), ErrorKind::Corrupt, "{opened}");
        }
    });
}

#[test]
fn a_store_reaches_the_server_of_the_applications_pool_and_takes_no_connection_from_it() {
    run(async {
        let database = TestDatabase::new().await;
        let options: MySqlConnectOptions = database.url().parse().expect("a URL");
        let pool = MySqlPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let held = pool.acquire().await.expect("the pool's only connection");
        let store = MySqlStore::from_pool(&pool).await.expect("connected");
        claim(&store, &key("k")).await;
        drop(held);
    });
}

#[test]
fn a_closed_store_refuses_calls() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        claim(&store, &key("k")).await;
        store.close().await;
        for refused in [
            store.peek(&key("k")).await.map(drop),
            store.begin().await.map(drop),
            store.check().await.map(drop),
        ] {
            let error = refused.expect_err("closed");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("the store is closed"), "{error}");
        }
    });
}
