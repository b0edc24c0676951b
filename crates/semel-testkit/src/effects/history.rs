//! A history of requests and responses, in a file that separate processes append to.

use std::io;
use std::path::Path;

use super::lines::{Lines, foreign};

/// One event in the life of a request, as a client or a holder sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryEvent {
    /// A client is about to send a request. Written before the request is sent.
    Asked,
    /// An attempt was granted to a holder.
    Granted {
        /// The number of the attempt.
        attempt: u32,
        /// The fence of the attempt.
        fence: u64,
    },
    /// A client got a response: the operation is done.
    Done {
        /// The outcome in the response.
        outcome: String,
        /// Whether the outcome was replayed from the record.
        replayed: bool,
    },
    /// A client got a response: the operation is not done (in progress, refused or failed).
    NotDone {
        /// Why the operation is not done.
        why: String,
    },
    /// A client got no reliable response: a timeout, or a lost reply.
    Unknown {
        /// Why there is no reliable response.
        why: String,
    },
    /// The record was read and was finished.
    Recorded {
        /// The outcome in the record.
        outcome: String,
    },
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The name of the client.
    pub client: String,
    /// The id of the key.
    pub key: String,
    /// The fingerprint of the request, or any text that identifies it.
    pub request: String,
    /// What happened.
    pub event: HistoryEvent,
}

/// A file of requests and responses that separate processes append to.
#[derive(Debug)]
pub struct History(Lines);

impl History {
    /// Opens or creates the history. With `synced`, [`note`](Self::note) returns once the line is
    /// on disk.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, synced: bool) -> io::Result<Self> {
        Lines::open(path, synced).map(Self)
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// When the line cannot be written, or when a text of the entry contains a tab or a line end.
    pub fn note(&self, answer: &HistoryEntry) -> io::Result<()> {
        let HistoryEntry { client, key, request, event } = answer;
        let (word, one, two) = match event {
            HistoryEvent::Asked => ("asked", String::new(), String::new()),
            HistoryEvent::Granted { attempt, fence } => {
                ("granted", attempt.to_string(), fence.to_string())
            }
            HistoryEvent::Done { outcome, replayed } => {
                ("done", outcome.clone(), replayed.to_string())
            }
            HistoryEvent::NotDone { why } => ("not-done", why.clone(), String::new()),
            HistoryEvent::Unknown { why } => ("unknown", why.clone(), String::new()),
            HistoryEvent::Recorded { outcome } => ("recorded", outcome.clone(), String::new()),
        };
        self.0.append(&[client, key, request, word, &one, &two])
    }

    /// Returns all entries in the order of writing.
    ///
    /// # Errors
    /// When the file cannot be read, or has a line that is not an entry.
    pub fn answers(&self) -> io::Result<Vec<HistoryEntry>> {
        self.0.read()?.iter().map(|line| parse(line).ok_or_else(|| foreign(line))).collect()
    }
}

fn parse(line: &[String]) -> Option<HistoryEntry> {
    let [client, key, request, word, one, two] = line else { return None };
    let event = match word.as_str() {
        "asked" => HistoryEvent::Asked,
        "granted" => HistoryEvent::Granted { attempt: one.parse().ok()?, fence: two.parse().ok()? },
        "done" => HistoryEvent::Done { outcome: one.clone(), replayed: two.parse().ok()? },
        "not-done" => HistoryEvent::NotDone { why: one.clone() },
        "unknown" => HistoryEvent::Unknown { why: one.clone() },
        "recorded" => HistoryEvent::Recorded { outcome: one.clone() },
        _ => return None,
    };
    let (client, key, request) = (client.clone(), key.clone(), request.clone());
    Some(HistoryEntry { client, key, request, event })
}
