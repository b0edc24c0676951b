//! The position of a scan over all records, and the cursor that callers get for it.

use semel_core::Digest;
use semel_core::store::Cursor;

/// The version of the format of a [`Cursor`].
const FORM: u8 = 1;

/// The position at which a scan continues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// The address of the node; empty for the first or only node.
    pub(crate) node: String,
    /// The cursor of the node's SCAN.
    pub(crate) cursor: u64,
    /// Whether the node has no more keys than the pending ones.
    pub(crate) exhausted: bool,
    /// The records that the last step found and that were not read yet.
    pub(crate) pending: Vec<Digest>,
}

impl Position {
    pub(crate) fn to_cursor(&self) -> Cursor {
        let mut bytes = vec![FORM, u8::from(self.exhausted)];
        bytes.extend(self.cursor.to_be_bytes());
        bytes.push(u8::try_from(self.node.len()).unwrap_or(0));
        bytes.extend(self.node.as_bytes());
        for digest in &self.pending {
            bytes.extend(digest.as_bytes());
        }
        Cursor(bytes)
    }

    pub(crate) fn from_cursor(cursor: &Cursor) -> Option<Self> {
        let (fixed, rest) = cursor.0.split_at_checked(11)?;
        let (node, digests) = rest.split_at_checked(usize::from(fixed[10]))?;
        if fixed[0] != FORM || digests.len() % 32 != 0 {
            return None;
        }
        Some(Self {
            node: std::str::from_utf8(node).ok()?.to_owned(),
            cursor: u64::from_be_bytes(fixed[2..10].try_into().ok()?),
            exhausted: fixed[1] != 0,
            pending: digests.chunks_exact(32).filter_map(Digest::from_bytes).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Key;

    use super::*;

    #[test]
    fn a_cursor_reads_back_and_foreign_bytes_are_refused() {
        let digest = Key::command("t", "s", "i").unwrap().digest();
        let position = Position {
            node: "127.0.0.1:7000".to_owned(),
            cursor: 42,
            exhausted: true,
            pending: vec![digest, digest],
        };
        let cursor = position.to_cursor();
        assert_eq!(Position::from_cursor(&cursor), Some(position));
        for cut in 0..cursor.0.len() {
            let cut = Cursor(cursor.0[..cut].to_vec());
            if let Some(read) = Position::from_cursor(&cut) {
                assert!(read.pending.len() < 2, "{cut:?}");
            }
        }
        assert_eq!(Position::from_cursor(&Cursor(vec![9; 11])), None);
    }
}
