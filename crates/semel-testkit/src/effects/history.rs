//! What clients asked and what they were told, as a file that separate processes append to.

use std::io;
use std::path::Path;

use super::lines::{Lines, foreign};

/// What a client asked or was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It asked. Written before the request is sent.
    Asked,
    /// A holder was granted an attempt.
    Granted {
        /// Which execution.
        attempt: u32,
        /// Under which fence.
        fence: u64,
    },
    /// It was told that the operation is done.
    Done {
        /// With this answer.
        outcome: String,
        /// From the record, and not by its own execution.
        replayed: bool,
    },
    /// It was told that the operation is not done: in progress, refused, failed.
    NotDone {
        /// In these words.
        why: String,
    },
    /// It was told nothing that it can rely on: a timeout, a lost reply.
    Unknown {
        /// In these words.
        why: String,
    },
    /// Somebody looked at the record and found it finished.
    Recorded {
        /// With this answer.
        outcome: String,
    },
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Who.
    pub client: String,
    /// About which key.
    pub key: String,
    /// With which request (its fingerprint, or any text that stands for it).
    pub request: String,
    /// What.
    pub told: Told,
}

/// A file of what clients asked and were told.
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

    /// Notes a line.
    ///
    /// # Errors
    /// When it cannot be written, or when a text of it holds a tab or a line end.
    pub fn note(&self, answer: &Answer) -> io::Result<()> {
        let Answer { client, key, request, told } = answer;
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

    /// The whole history, in order.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn answers(&self) -> io::Result<Vec<Answer>> {
        self.0.read()?.iter().map(|line| parse(line).ok_or_else(|| foreign(line))).collect()
    }
}

fn parse(line: &[String]) -> Option<Answer> {
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
    Some(Answer { client, key, request, told })
}
