//! A history of requests and responses, as a file that separate processes append to.

use std::io;
use std::path::Path;

use super::lines::{Lines, foreign};

/// One event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The client sends a request. Written before it is sent.
    Asked,
    /// A holder was granted an attempt.
    Granted {
        /// The attempt.
        attempt: u32,
        /// Its fence.
        fence: u64,
    },
    /// The response says that the operation is done.
    Done {
        /// The outcome.
        outcome: String,
        /// Whether it was replayed from the record.
        replayed: bool,
    },
    /// The response says that the operation is not done: in progress, refused, failed.
    NotDone {
        /// The reason.
        why: String,
    },
    /// There is no reliable response: a timeout, a lost reply.
    Unknown {
        /// The reason.
        why: String,
    },
    /// The record was read and found finished.
    Recorded {
        /// The outcome.
        outcome: String,
    },
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The client.
    pub client: String,
    /// The id of the key.
    pub key: String,
    /// The request: its fingerprint, or any text that stands for it.
    pub request: String,
    /// The event.
    pub told: Told,
}

/// A file of requests and responses.
#[derive(Debug)]
pub struct History(Lines);

impl History {
    /// Opens or creates the history. With `synced`, a line is on disk before the client goes on.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, synced: bool) -> io::Result<Self> {
        Lines::open(path, synced).map(Self)
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// When it cannot be written, or when a text of it holds a tab or a line end.
    pub fn note(&self, answer: &HistoryEntry) -> io::Result<()> {
        let HistoryEntry { client, key, request, told } = answer;
        let (word, one, two) = match told {
            Told::Asked => ("asked", String::new(), String::new()),
            Told::Granted { attempt, fence } => ("granted", attempt.to_string(), fence.to_string()),
            Told::Done { outcome, replayed } => ("done", outcome.clone(), replayed.to_string()),
            Told::NotDone { why } => ("not-done", why.clone(), String::new()),
            Told::Unknown { why } => ("unknown", why.clone(), String::new()),
            Told::Recorded { outcome } => ("recorded", outcome.clone(), String::new()),
        };
        self.0.append(&[client, key, request, word, &one, &two])
    }

    /// Returns all entries in the order of writing.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn answers(&self) -> io::Result<Vec<HistoryEntry>> {
        self.0.read()?.iter().map(|line| parse(line).ok_or_else(|| foreign(line))).collect()
    }
}

fn parse(line: &[String]) -> Option<HistoryEntry> {
    let [client, key, request, word, one, two] = line else { return None };
    let told = match word.as_str() {
        "asked" => Told::Asked,
        "granted" => Told::Granted { attempt: one.parse().ok()?, fence: two.parse().ok()? },
        "done" => Told::Done { outcome: one.clone(), replayed: two.parse().ok()? },
        "not-done" => Told::NotDone { why: one.clone() },
        "unknown" => Told::Unknown { why: one.clone() },
        "recorded" => Told::Recorded { outcome: one.clone() },
        _ => return None,
    };
    let (client, key, request) = (client.clone(), key.clone(), request.clone());
    Some(HistoryEntry { client, key, request, told })
}
