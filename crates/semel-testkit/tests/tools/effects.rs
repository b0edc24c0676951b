//! The ledger of effects and the history: lines of many writers are whole and in order.

use std::io::Write;
use std::path::PathBuf;

use semel_testkit::effects::{Effect, EffectLedger, History, HistoryEntry, HistoryEvent};

/// A file of one test, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("semel-effects-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Removes a file left by a killed process that had the same id.
        let _ = std::fs::remove_file(&path);
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn effect(key: &str, attempt: u32) -> Effect {
    let (operation, value) = ("host:1:a".into(), String::new());
    Effect { key: key.into(), operation, attempt, fence: u64::MAX, value }
}

#[test]
fn what_happens_twice_is_written_twice() {
    let scratch = Scratch::new("twice");
    let ledger = EffectLedger::open(&scratch.0, true).unwrap();
    for attempt in [1, 1, 2] {
        ledger.record(&effect("kéy 😀", attempt)).unwrap();
    }
    ledger.record(&effect("other", 1)).unwrap();
    let again = EffectLedger::open(&scratch.0, false).unwrap();
    assert_eq!(again.effects().unwrap().len(), 4);
    assert_eq!(again.effects().unwrap()[2], effect("kéy 😀", 2));
    assert_eq!(
        again.per_key().unwrap().into_iter().collect::<Vec<_>>(),
        [("kéy 😀".to_owned(), 3), ("other".to_owned(), 1)]
    );
}

#[test]
fn lines_of_many_writers_do_not_mix() {
    let scratch = Scratch::new("many");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let path = &scratch.0;
            scope.spawn(move || {
                // A handle of its own, as another process has.
                let ledger = EffectLedger::open(path, false).unwrap();
                for at in 0..200 {
                    ledger.record(&effect(&format!("{writer}-{}", "x".repeat(at)), 1)).unwrap();
                }
            });
        }
    });
    let counts = EffectLedger::open(&scratch.0, false).unwrap().per_key().unwrap();
    assert_eq!(counts.len(), 8 * 200);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn a_line_whose_writer_was_killed_does_not_count() {
    let scratch = Scratch::new("torn");
    let ledger = EffectLedger::open(&scratch.0, false).unwrap();
    ledger.record(&effect("whole", 1)).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&scratch.0).unwrap();
    file.write_all(b"torn\to\t1\t").unwrap();
    assert_eq!(ledger.effects().unwrap(), [effect("whole", 1)]);
}

#[test]
fn a_foreign_file_is_refused_and_a_field_cannot_forge_a_line() {
    let scratch = Scratch::new("foreign");
    let ledger = EffectLedger::open(&scratch.0, false).unwrap();
    assert!(ledger.record(&effect("a\nb\to\t1\t1\t", 1)).is_err());
    assert!(ledger.effects().unwrap().is_empty());
    std::fs::write(&scratch.0, "something else\n").unwrap();
    assert!(ledger.effects().unwrap_err().to_string().contains("not of this ledger"));
}

#[test]
fn a_history_reads_back_as_it_was_noted() {
    let scratch = Scratch::new("history");
    let history = History::open(&scratch.0, false).unwrap();
    let lines: Vec<HistoryEntry> = [
        HistoryEvent::Asked,
        HistoryEvent::Granted { attempt: 3, fence: u64::MAX },
        HistoryEvent::Done { outcome: String::new(), replayed: true },
        HistoryEvent::NotDone { why: "in progress".into() },
        HistoryEvent::Unknown { why: "the reply was lost".into() },
        HistoryEvent::Recorded { outcome: "{\"id\":1}".into() },
    ]
    .map(|event| HistoryEntry { client: "1".into(), key: "k".into(), request: "r".into(), event })
    .to_vec();
    for line in &lines {
        history.note(line).unwrap();
    }
    assert_eq!(History::open(&scratch.0, true).unwrap().answers().unwrap(), lines);
}
