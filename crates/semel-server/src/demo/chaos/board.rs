//! Shows the load: a table that is redrawn in place on a terminal, a line every second elsewhere.

use std::io::{IsTerminal as _, Write as _};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use super::load::Counted;
use crate::demo::tally::{GROUPS, Tally};

/// The numbers to show.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) counts: Counted,
    pub(super) tally: Tally,
    pub(super) pending: u64,
}

/// The output.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// The number of lines of the last table, which the next one overwrites; 0 if a plain line was
    /// written last.
    drawn: usize,
}

impl Board {
    /// Whether a new table replaces the old one.
    pub(super) fn in_place(&self) -> bool {
        self.drawn > 0
    }

    /// Shows the numbers on stdout.
    pub(super) fn show(&mut self, view: &View) {
        let mut out = std::io::stdout().lock();
        let room = out.is_terminal().then(|| terminal_size::terminal_size_of(&out)).flatten();
        let text = self.draw(view, room.map(|(width, height)| (width.0, height.0)));
        // Stdout may be closed.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Returns a table over the last one, if it fits into the terminal: a line that wraps or has scrolled
    /// away cannot be drawn over.
    fn draw(&mut self, view: &View, room: Option<(u16, u16)>) -> String {
        let table = view.table();
        let lines = table.lines().count();
        let width = table.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        let fits = |(columns, rows): (u16, u16)| width <= columns.into() && lines < rows.into();
        let before = std::mem::take(&mut self.drawn);
        if !room.is_some_and(fits) {
            return format!("{}\n", view.line());
        }
        self.drawn = lines;
        match before {
            0 => format!("{table}\n"),
            // From the start of the line: a terminal echoes ^C.
            up => format!("\r\x1b[{up}A\x1b[J{table}\n"),
        }
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

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        // A call whose caller hung up may have placed its order.
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

    #[test]
    fn a_table_is_drawn_over_the_last_one_where_there_is_room_for_it() {
        let view = View { counts: Counted::default(), tally: Tally::default(), pending: 0 };
        let (mut board, height) = (Board::default(), view.table().lines().count());
        assert!(!board.draw(&view, Some((80, 24))).contains('\x1b'), "nothing to draw over yet");
        let again = board.draw(&view, Some((80, 24)));
        assert!(again.starts_with(&format!("\r\x1b[{height}A\x1b[J")), "{again:?}");
        // Too narrow, too low, or no terminal: plain lines, which are not drawn over.
        for room in [Some((40, 24)), Some((80, 8)), None] {
            assert_eq!(board.draw(&view, room), format!("{}\n", view.line()));
            assert!(!board.in_place());
        }
        assert!(!board.draw(&view, Some((80, 24))).contains('\x1b'), "the line stays");
    }
}
