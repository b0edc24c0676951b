//! How far long work has come, on stderr: a bar on a terminal, else a line every few seconds.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// Between two lines, where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

/// Long work under way. Says nothing of work that is soon done.
pub(crate) struct Watch {
    what: &'static str,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl Watch {
    /// Begins to watch `what`, of which there are `total`, as far as anybody knows.
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            bar.set_style(style(total.is_some()));
            bar.set_prefix(what);
            bar
        });
        Self { what, bar, said: Instant::now() }
    }

    /// So many are done. `words` says it to those who have no terminal.
    pub(crate) fn at(&mut self, done: u64, total: Option<u64>, words: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            if let Some(total) = total.filter(|total| Some(*total) != bar.length()) {
                bar.set_style(style(true));
                bar.set_length(total);
            }
            bar.set_position(done);
        } else if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            let _ = writeln!(std::io::stderr(), "{}: {}", self.what, words());
        }
    }

    /// So many are done, of nobody knows how many.
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
        true => "{prefix} [{bar:30}] {human_pos}/{human_len} {per_sec}, {eta} left",
        false => "{prefix} {spinner} {human_pos} {per_sec}",
    };
    ProgressStyle::with_template(template).expect("a template")
}
