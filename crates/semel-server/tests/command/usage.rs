//! Tests of invalid usage and of missing stores: one line, and an exit code for scripts.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use semel_core::outbox::Disposition;
use semel_core::{ErrorText, OnCrash};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::fixture::{Fixture, Scratch, on};
use crate::program::{run, semel};
use crate::seeds::{claimed, ended, handled, key, orders, relayed, succeeded, uncertain};

#[test]
fn an_unknown_flag_is_one_line_and_code_2() {
    let scratch = Scratch::new();
    for words in [
        &["records", "list", "--nope"][..],
        &["records"],
        &["recrods", "list"],
        &["records", "list", "--limit", "0"],
        &["records", "list", "--state", "lost"],
        &["records", "list", "--after", "xyz"],
        &["records", "resolve", "k"],
        &["records", "resolve", "k", "--rerun", "--failed"],
        &["records", "resolve", "k", "--rerun", "--status", "201"],
        &["records", "resolve", "k", "--rerun", "--keep", "1h"],
        &["records", "resolve", "k", "--failed", "--keep", "0s"],
        &["records", "resolve", "k", "--succeeded", "/dev/null", "--keep", "999ms"],
        &["records", "purge"],
        &["outbox", "redrive"],
        &["outbox", "redrive", "not-an-id"],
        &["outbox", "discard", "--all"],
        &["inbox", "redrive", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--all"],
        &["inbox", "failed", "--state", "running"],
        &["ids", "encode", "ord"],
        &["ids", "new", "Ord"],
        &["map", "verify"],
        &["map", "verify", "--table", "t", "--type", "GIZMO"],
        &["completions", "telnet"],
        &["migrate", "print", "oracle"],
        &["doctor", "--store", "mongodb://x"],
        &["doctor", "--store", "postgres://db:port/x"],
        &["sweep", "--limit", "none"],
    ] {
        let printed = run(scratch.path(), words).badly(2);
        assert!(printed.starts_with("semel: "), "{words:?}: {printed}");
    }
}

#[test]
fn arguments_that_are_not_utf_8_are_one_line_and_code_2() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let scratch = Scratch::new();
    let garbled = "\u{fffd}";
    for words in [
        &["records", "list", "--id", garbled][..],
        &["records", "show", garbled],
        &["doctor", "--store", garbled],
        &["doctor", "--config", garbled],
        &["outbox", "redrive", garbled],
        &[garbled],
    ] {
        let bytes = |word: &&str| match *word == garbled {
            true => OsStr::from_bytes(b"k\xff\xfe").to_owned(),
            false => OsStr::new(word).to_owned(),
        };
        let printed = run(scratch.path(), words.iter().map(bytes)).badly(2);
        assert!(printed.starts_with("semel: "), "{words:?}: {printed}");
    }
}

#[test]
fn every_command_has_help() {
    let scratch = Scratch::new();
    let help = run(scratch.path(), ["records", "resolve", "--help"]).well();
    for flag in ["--succeeded <FILE>", "--failed", "--rerun", "--reason", "--force", "--dry-run"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    assert!(run(scratch.path(), ["--help"]).well().contains("Exit codes: 0 ok"));
    assert!(run(scratch.path(), ["--version"]).well().starts_with("semel "));
}

#[test]
fn no_password_is_shown_whatever_goes_wrong() {
    let scratch = Scratch::new();
    let file = scratch.file("semel.toml", "[ledger]\nstore = \"mongodb://ann:hush@db/x\"\n");
    for words in [
        &["doctor", "--store", "postgres://ann:hush@127.0.0.1:1/x"][..],
        &["doctor", "--store", "postgres://ann:hu/hush@db/x"],
        &["doctor", "--store", "postgres://127.0.0.1:1/x?password=hush"],
        &["doctor", "postgres://ann:hush@db/x"],
        &["records", "list", "--store", "ann:hush@db"],
        &["doctor", "--broker", "nats://ann:hush@127.0.0.1:1"],
        &["doctor", "--broker", "kafka://ann:hush@db"],
        &["doctor", "--config", &file],
    ] {
        let ended = run(scratch.path(), words);
        assert_ne!(ended.code, Some(0), "{words:?}");
        let printed = format!("{}{}", ended.stdout, ended.stderr);
        assert!(!printed.contains("hush"), "{words:?}: {printed}");
    }
}

#[test]
fn settings_that_are_unreadable_or_invalid_are_code_2() {
    let scratch = Scratch::new();
    let directory = scratch.path();
    let missing = run(directory, ["doctor", "--config", "nowhere.toml"]).badly(2);
    assert!(missing.contains("nowhere.toml"), "{missing}");
    for (text, named) in [
        ("[ledger", "line 1"),
        ("[ledger]\nlock_til = \"1s\"", "lock_til"),
        ("[ledger]\nlock_ttl = \"0s\"", "ledger.lease"),
        ("[relay]\nbase_backoff = \"1h\"\nmax_backoff = \"1s\"", "relay.max_backoff"),
    ] {
        scratch.file("semel.toml", text);
        let printed = run(directory, ["records", "list", "--config", "semel.toml"]).badly(2);
        assert!(printed.contains(named), "{printed}");
    }
    let mut command = semel(directory, ["records", "list"]);
    command.env("SEMEL_LEDGER__LOCK_TTL", "0s");
    let ended = crate::program::Ended::from(command.output().unwrap());
    assert!(ended.badly(2).contains("SEMEL_LEDGER__LOCK_TTL"));
}

/// Commands that need a store, each with its required arguments.
const COMMANDS: [&[&str]; 9] = [
    &["migrate", "verify"],
    &["migrate", "apply"],
    &["doctor"],
    &["records", "list"],
    &["records", "show", "k"],
    &["sweep"],
    &["outbox", "status"],
    &["inbox", "failed"],
    &["map", "verify", "--table", "orders", "--type", "ORDER"],
];

#[test]
fn a_store_that_refuses_is_code_4() {
    let scratch = Scratch::new();
    for url in ["postgres://127.0.0.1:1/x", "mysql://127.0.0.1:1/x", "redis://127.0.0.1:1"] {
        for command in COMMANDS {
            if url.starts_with("redis") && command[0] == "migrate" {
                continue;
            }
            let words: Vec<&str> = command.iter().copied().chain(["--store", url]).collect();
            let printed = run(scratch.path(), words).badly(4);
            assert!(printed.contains("127.0.0.1:1"), "{printed}");
        }
    }
}

#[test]
fn a_store_that_does_not_answer_is_code_4() {
    let scratch = Scratch::new();
    // Connections wait in the queue of the listener and are never accepted.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let urls = ["postgres", "mysql", "redis"].map(|scheme| format!("{scheme}://{address}/x"));
    let waiting = urls.map(|url| {
        let url = if url.starts_with("redis") { url.replace("/x", "") } else { url };
        let mut command = semel(scratch.path(), ["records", "list", "--store", &url]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for child in waiting {
        let ended = crate::program::Ended::from(child.wait_with_output().unwrap());
        ended.badly(4);
    }
}

#[test]
fn a_file_that_is_not_there_or_is_no_database_is_code_4() {
    let scratch = Scratch::new();
    for command in COMMANDS.iter().filter(|command| command[1..] != ["apply"]) {
        let printed = run(scratch.path(), *command).badly(4);
        assert!(printed.contains("no such file"), "{printed}");
        assert!(!scratch.path().join("semel.db").exists(), "{command:?} created a file");
    }
    scratch.file("semel.db", "this is no database, and long enough to be seen as none at all ....");
    let printed = run(scratch.path(), ["records", "list"]).badly(4);
    assert!(printed.contains("semel.db"), "{printed}");
}

#[tokio::test]
async fn reading_another_programs_database_changes_nothing() {
    let scratch = Scratch::new();
    let path = scratch.path().join("semel.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut connection = options.connect().await.unwrap();
    sqlx::query("CREATE TABLE theirs (id INTEGER)").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    for words in [&["records", "list"][..], &["sweep", "--dry-run"], &["outbox", "status"]] {
        let printed = run(scratch.path(), words).badly(1);
        assert!(printed.contains("semel migrate apply"), "{printed}");
        assert_eq!(std::fs::read(&path).unwrap(), before, "{words:?}");
    }
}

#[test]
fn a_memory_store_cannot_be_opened_from_outside() {
    let scratch = Scratch::new();
    let printed = run(scratch.path(), ["records", "list", "--store", "memory:"]).badly(2);
    assert!(printed.contains("inside the process"), "{printed}");
}

#[tokio::test]
async fn a_closed_pipe_is_not_an_error() {
    let fixture = Fixture::sqlite().await;
    for words in [
        &["records", "list"][..],
        &["records", "list", "--json"],
        &["migrate", "print"],
        &["completions", "zsh"],
        &["ids", "new", "ord", "--count", "100000"],
        &["--help"],
    ] {
        let mut command = match words[0] {
            "records" => fixture.command(words),
            _ => semel(fixture.scratch.path(), words),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = crate::program::Ended::from(child.wait_with_output().unwrap());
        ended.well();
    }
}

/// With --json a successful command prints one document, even for an empty store.
#[tokio::test]
async fn an_empty_store_is_answered_with_one_document() {
    let fixture = Fixture::sqlite().await;
    for words in [
        &["records", "list"][..],
        &["records", "purge", "--all", "--scope", "X"],
        &["records", "purge", "--all", "--scope", "X", "--dry-run"],
        &["sweep"],
        &["sweep", "--dry-run"],
        &["outbox", "status"],
        &["outbox", "list"],
        &["outbox", "redrive", "--all"],
        &["outbox", "republish", "--all", "--type", "x"],
        &["outbox", "discard", "--all", "--type", "x", "--reason", "r"],
        &["inbox", "failed"],
        &["inbox", "redrive", "--all"],
        &["inbox", "discard", "--all", "--group", "X", "--reason", "r"],
        &["migrate", "apply"],
        &["migrate", "verify"],
        &["doctor"],
    ] {
        // This fails unless the output is one document and nothing else.
        assert!(fixture.json(words).is_object(), "{words:?}");
    }
    for words in
        [&["ids", "new", "ord"][..], &["ids", "encode", "ord", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]]
    {
        let printed = run(fixture.scratch.path(), words.iter().copied().chain(["--json"])).well();
        assert!(
            serde_json::from_str::<serde_json::Value>(&printed).unwrap().is_object(),
            "{printed}"
        );
    }
}

/// A command that fails prints nothing to stdout that a program could take for a result.
#[tokio::test]
async fn a_failure_prints_no_half_document() {
    let fixture = Fixture::sqlite().await;
    for (words, code) in [
        (&["records", "show", "nobody"][..], 2),
        (&["records", "release", "nobody"], 2),
        (&["records", "purge", "--all"], 2),
        (&["outbox", "discard", "--all", "--reason", "r"], 2),
        (&["map", "verify", "--table", "nowhere", "--type", "ORDER"], 2),
        (&["records", "list", "--after", "zz"], 2),
    ] {
        let ended = fixture.run(&[words, &["--json"]].concat());
        assert_eq!(ended.stdout, "", "{words:?}");
        ended.badly(code);
    }
}

/// Runs every verb that changes something as a dry run, on a store with records and events.
async fn a_dry_run_changes_nothing(fixture: Fixture) {
    let store = fixture.open_store().await;
    let events = orders(&store, 2).await;
    relayed(&store, Disposition::Dead { error: ErrorText::new("no"), holds_partition: false })
        .await;
    handled(&store, "NOTIFY", events[0], false).await;
    let ledger = store.ledger();
    ended(&ledger, &key("PAY", "old"), succeeded("1", "r", Duration::ZERO)).await;
    ended(&ledger, &key("PAY", "maybe"), uncertain("?")).await;
    claimed(&ledger, &key("PAY", "lapsed"), OnCrash::Hold, Duration::ZERO).await;
    store.close().await;
    let look = || (fixture.json(&["records", "list"]), fixture.json(&["outbox", "list"]));
    let before = look();
    let (answer, event) = (fixture.scratch.file("answer.json", "1"), events[0].to_string());
    for words in [
        &["records", "release", "maybe"][..],
        &["records", "resolve", "maybe", "--rerun", "--reason", "x"],
        &["records", "resolve", "maybe", "--failed", "--reason", "x"],
        &["records", "resolve", "maybe", "--succeeded", &answer, "--reason", "x"],
        &["records", "purge", "maybe"],
        &["records", "purge", "--all", "--scope", "PAY"],
        &["sweep"],
        &["outbox", "redrive", "--all"],
        &["outbox", "redrive", &event],
        &["outbox", "discard", "--all", "--type", "order.placed", "--reason", "x"],
        &["outbox", "republish", "--all"],
        &["inbox", "redrive", "--all"],
        &["inbox", "redrive", &event],
        &["inbox", "discard", "--all", "--group", "NOTIFY", "--reason", "x"],
        &["migrate", "apply"],
    ] {
        let planned = fixture.run(&[words, &["--dry-run"]].concat());
        assert_eq!(planned.stderr, "", "{words:?}: nothing was decided, so nothing is audited");
        planned.well();
        assert_eq!(look(), before, "{words:?}");
    }
}

on!(a_dry_run_changes_nothing: sqlite, postgres);

#[test]
fn every_shell_has_completions() {
    let scratch = Scratch::new();
    for (shell, word) in
        [("bash", "_semel()"), ("zsh", "#compdef semel"), ("fish", "complete -c semel")]
    {
        let script = run(scratch.path(), ["completions", shell]).well();
        assert!(script.contains(word), "{shell}");
    }
}
