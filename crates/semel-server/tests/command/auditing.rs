//! Tests of the audit lines of verbs that change something.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::fixture::{Fixture, audited, on};
use crate::program::{disposition, under};
use crate::seeds::{HOUR, dead, ended, handled, key, orders, relayed, succeeded};

/// Every verb that changes something writes its actor and reason, before and after the change.
async fn every_change_has_an_actor_and_a_reason(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    let events = orders(&store, 2).await;
    let error = semel_core::ErrorText::new("no");
    relayed(&store, semel_core::outbox::Disposition::Dead { error, holds_partition: false }).await;
    handled(&store, "NOTIFY", events[0], false).await;
    handled(&store, "BILLING", events[0], false).await;
    for id in ["a", "b", "c"] {
        ended(&ledger, &key("PAY", id), dead("no")).await;
    }
    ended(&ledger, &key("PAY", "old"), succeeded("1", "r", std::time::Duration::ZERO)).await;
    ended(&ledger, &key("PAY", "paid"), succeeded("1", "r", HOUR)).await;
    store.close().await;
    let event = events[0].to_string();
    for (words, count) in [
        (&["records", "release", "a"][..], 1),
        (&["records", "resolve", "b", "--failed"], 1),
        (&["records", "purge", "c"], 1),
        (&["records", "purge", "--all", "--scope", "PAY", "--state", "succeeded"], 2),
        (&["sweep"], 0),
        (&["outbox", "redrive", "--all"], 2),
        (&["outbox", "discard", &event], 1),
        (&["inbox", "redrive", "--all", "--group", "NOTIFY"], 1),
        (&["inbox", "discard", "--all", "--group", "BILLING"], 1),
        (&["migrate", "apply"], 0),
    ] {
        let signed = [words, &["--actor", "ann", "--reason", "ticket 7"]].concat();
        let done = fixture.run(&signed);
        let [begin, end] = audited(&done.stderr);
        assert_eq!((&begin["actor"], &begin["reason"]), (&"ann".into(), &"ticket 7".into()));
        assert_eq!((&end["phase"], &end["count"]), (&"end".into(), &count.into()), "{words:?}");
        assert!(!done.stderr.contains("\"paid\""), "no key is in the lines: {}", done.stderr);
        done.well();
    }
}

on!(every_change_has_an_actor_and_a_reason: sqlite, postgres);

/// The default actor is the user that the process runs as, not a variable.
#[tokio::test(flavor = "multi_thread")]
async fn the_actor_is_the_user_of_the_process() {
    let fixture = Fixture::sqlite().await;
    let user = Command::new("id").arg("-un").output().expect("there is an id command");
    let user = String::from_utf8(user.stdout).unwrap();
    let mut command = fixture.command(&["sweep"]);
    command.env("USER", "somebody-else").env_remove("SUDO_USER");
    let [begin, _] = audited(&crate::program::Ended::from(command.output().unwrap()).stderr);
    assert_eq!(begin["actor"], user.trim());
}

/// A line that cannot be written stops the verb before it changes anything: a full disk, a descriptor that
/// is closed or cannot be written.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_first_line_nothing_is_changed() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    let event = orders(&store, 1).await[0].to_string();
    let error = semel_core::ErrorText::new("no");
    relayed(&store, semel_core::outbox::Disposition::Dead { error, holds_partition: false }).await;
    handled(&store, "NOTIFY", event.parse().unwrap(), false).await;
    ended(&store.ledger(), &key("PAY", "a"), dead("no")).await;
    ended(&store.ledger(), &key("PAY", "old"), succeeded("1", "r", std::time::Duration::ZERO))
        .await;
    store.close().await;
    let state = || {
        let lists = [&["records", "list"][..], &["outbox", "list"], &["inbox", "failed"]];
        lists.map(|words| fixture.json(words).to_string())
    };
    let before = state();
    for stderr in ["2>/dev/full", "2>&-", "2</dev/null"] {
        for words in [
            &["records", "release", "a"][..],
            &["records", "resolve", "a", "--failed"],
            &["records", "purge", "a"],
            &["records", "purge", "--all", "--scope", "PAY"],
            &["sweep"],
            &["outbox", "redrive", "--all"],
            &["outbox", "discard", &event, "--reason", "no"],
            &["inbox", "redrive", "--all", "--group", "NOTIFY"],
            &["migrate", "apply"],
        ] {
            let script = format!("exec \"$0\" \"$@\" {stderr}");
            let mut command = under(&["sh", "-c", &script], &fixture.command(words));
            let done = crate::program::Ended::from(command.output().unwrap());
            assert_eq!(done.code, Some(1), "{stderr} {words:?}: {}", done.stdout);
            assert!(done.stdout.contains("nothing was changed"), "{stderr}: {}", done.stdout);
        }
        assert_eq!(state(), before, "{stderr}");
    }
    // `/dev/null` is accepted, because the operator chose it.
    let mut command =
        under(&["sh", "-c", "exec \"$0\" \"$@\" 2>/dev/null"], &fixture.command(&["sweep"]));
    assert_eq!(command.status().unwrap().code(), Some(0));
}

/// Starts a purge that cannot proceed, waits for its first audit line, and ends it by a signal.
/// Returns its exit code and its output.
async fn broken_off(signal: &str) -> (Option<i32>, String) {
    // Resets SIGHUP, because the tests themselves may run under `nohup`.
    signalled(&["env", "--default-signal=HUP"], signal).await
}

/// Does the same with a purge that another program starts. If that program ignores SIGHUP, the
/// purge may proceed after the signal.
async fn signalled(runner: &[&str], signal: &str) -> (Option<i32>, String) {
    let fixture = Fixture::postgres().await;
    let store = fixture.open_store().await;
    for id in ["a", "b", "c"] {
        ended(&store.ledger(), &key("PAY", id), dead("no")).await;
    }
    // The purge can read, but waits for every row that it wants to change.
    let mut rival = PgConnection::connect(&fixture.url).await.unwrap();
    rival.execute("BEGIN; LOCK TABLE semel_record IN SHARE MODE").await.unwrap();
    let command = fixture.command(&["records", "purge", "--all", "--scope", "PAY"]);
    let mut command = under(runner, &command);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program can be started");
    let mut stderr = BufReader::new(child.stderr.take().expect("it was piped"));
    let mut printed = String::new();
    stderr.read_line(&mut printed).unwrap();
    assert!(printed.contains("\"phase\":\"begin\""), "{printed}");
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("there is a kill command").success());
    if disposition(child.id(), 1).0 {
        rival.execute("ROLLBACK").await.unwrap();
    }
    stderr.read_to_string(&mut printed).unwrap();
    let code = child.wait().unwrap().code();
    drop(rival);
    (code, printed)
}

/// An interrupted verb writes that it is unfinished, and the number of changes; a killed verb has
/// written its first line.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_verb_is_in_the_audit() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let (code, printed) = broken_off(signal).await;
        let [_, end] = audited(&printed);
        assert_eq!((&end["phase"], &end["count"]), (&"unfinished".into(), &0.into()), "{printed}");
        assert!(code.is_some_and(|code| code != 0), "{signal}: {code:?}");
    }
    let (code, printed) = broken_off("-KILL").await;
    assert_eq!((code, printed.lines().count()), (None, 1), "{printed}");
    let begin: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&begin["audit"], &begin["filter"]["scope"]),
        (&"records purge".into(), &"PAY".into())
    );
}

/// A verb under `nohup` outlives its terminal, because an ignored SIGHUP stays ignored.
#[tokio::test(flavor = "multi_thread")]
async fn under_nohup_a_verb_goes_on_after_a_hangup() {
    let (code, printed) = signalled(&["nohup"], "-HUP").await;
    let [_, end] = audited(&printed);
    assert_eq!((&end["phase"], &end["count"]), (&"end".into(), &3.into()), "{printed}");
    assert_eq!(code, Some(0), "{printed}");
}
