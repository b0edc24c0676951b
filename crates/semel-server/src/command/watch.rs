//! Shows the progress of long work on stderr: a bar on a terminal, else a line every few seconds.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// The interval of progress lines if stderr is not a terminal.
const EVERY: Duration = Duration::from_secs(5);
/// The time after which a progress bar appears.
const SOON: Duration = Duration::from_millis(500);

/// Shows the progress of long work, and nothing for short work.
pub(crate) struct Watch {
    what: &'static str,
    total: Option<u64>,
    terminal: bool,
    bar: Option<ProgressBar>,
    shown_at: Instant,
}

impl Watch {
    /// Starts to show the progress of `what`, which has `total` items if that is known.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what, total, terminal, bar: None, shown_at: Instant::now() }
    }

    /// Shows that `done` items are done. `words` returns the progress line if stderr is not a
    /// terminal.
    pub(crate) fn at(&mut self, done: u64, total: Option<u64>, words: impl FnOnce() -> String) {
        if self.terminal {
            if self.bar.is_some() || self.shown_at.elapsed() >= SOON {
                self.draw(done, total.or(self.total));
            }
        } else if self.shown_at.elapsed() >= EVERY {
            self.shown_at = Instant::now();
            let _ = writeln!(std::io::stderr(), "{}: {}", self.what, words());
        }
    }

    fn draw(&mut self, done: u64, total: Option<u64>) {
        let bar = self.bar.get_or_insert_with(|| {
            ProgressBar::no_length().with_style(style(false)).with_prefix(self.what)
        });
        if let Some(total) = total.filter(|total| Some(*total) != bar.length()) {
            bar.set_style(style(true));
            bar.set_length(total);
        }
        bar.set_position(done);
    }

    /// Shows that `done` items are done, of an unknown total.
    pub(crate) fn counted(&mut self, done: u64) {
        self.at(done, None, || format!("{done} so far"));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(bounded: bool) -> ProgressStyle {
    let template = match bounded {
        true => "{prefix} [{bar:30}] {human_pos} of {human_len}, {eta} left",
        false => "{prefix} {spinner} {human_pos}",
    };
    ProgressStyle::with_template(template).expect("a template")
}
