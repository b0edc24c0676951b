//! What is shown of a load: a table redrawn in place on a terminal, a line a second elsewhere.

use std::io::{IsTerminal as _, Write as _};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use super::load::Counted;
use crate::demo::tables::{GROUPS, Tally};

/// What there is to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) counts: Counted,
    pub(super) tally: Tally,
    pub(super) pending: u64,
}

/// Where it is shown.
#[derive(Debug)]
pub(super) struct Board {
    in_place: bool,
    /// Lines of the last table, which the next is drawn over.
    drawn: usize,
}

impl Board {
    /// The standard output.
    pub(super) fn new() -> Self {
        Self { in_place: std::io::stdout().is_terminal(), drawn: 0 }
    }

    /// Whether a new table takes the place of the old one.
    pub(super) fn in_place(&self) -> bool {
        self.in_place
    }

    pub(super) fn show(&mut self, view: &View) {
        let mut out = std::io::stdout().lock();
        let text = if self.in_place {
            let table = view.table();
            let back = match self.drawn {
                0 => String::new(),
                lines => format!("\x1b[{lines}A\x1b[J"),
            };
            self.drawn = table.lines().count();
            format!("{back}{table}\n")
        } else {
            format!("{}\n", view.line())
        };
        // Nobody may be looking any more.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl View {
    fn calls(&self) -> [(&'static str, String); 6] {
        let Counted { requests, executed, replayed, in_progress, failed, hung_up, .. } =
            self.counts;
        [
            ("requests", requests),
            ("executed", executed),
            ("replayed", replayed),
            ("in progress", in_progress),
            ("failed", failed),
            ("hung up", hung_up),
        ]
        .map(|(name, count)| (name, count.to_string()))
    }

    fn effects(&self) -> [(&'static str, String); 6] {
        let [first, second, third] = self.tally.effects.map(|effects| effects.rows);
        let resent = i64::try_from(self.counts.resent).unwrap_or(i64::MAX);
        [
            ("orders", self.tally.orders),
            (GROUPS[0], first),
            (GROUPS[1], second),
            (GROUPS[2], third),
            ("events sent again", resent),
            ("effects doubled", self.tally.doubled()),
        ]
        .map(|(name, count)| (name, count.to_string()))
    }

    /// Narrow enough for any terminal: a line that wraps could not be drawn over.
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        // A call that was hung up on may have placed its order all the same.
        table.set_header(["callers saw", "", "the database has", ""]);
        for (call, effect) in self.calls().iter().zip(&self.effects()) {
            table.add_row([call.0, &call.1, effect.0, &effect.1]);
        }
        for column in [1, 3] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    fn line(&self) -> String {
        let cells = self.calls().into_iter().chain(self.effects());
        let cells = cells.map(|(name, count)| format!("{name} {count}"));
        let pending = format!("outbox pending {}", self.pending);
        cells.chain([pending]).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_the_table_says() {
        let counts = Counted { requests: 7, executed: 2, in_progress: 1, ..Counted::default() };
        let view = View { counts, tally: Tally::default(), pending: 3 };
        let line = view.line();
        for said in ["requests 7", "executed 2", "in progress 1", "effects doubled 0", "pending 3"]
        {
            assert!(line.contains(said), "{line}");
        }
        let table = view.table();
        assert!(table.contains("in progress") && table.contains("effects doubled"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() < 80), "{table}");
    }
}
