//! Charts of the results as SVG: one bar per ratio that has a target.
//!
//! A bar begins at 1, where the measured side is as fast as its reference, and ends at the measured
//! ratio, on a logarithmic axis; a thin line is the spread over the rounds and a tick is the
//! target. Each chart is written twice, for light and for dark pages.

use std::path::{Path, PathBuf};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Deserialize;

use super::BoxError;

const WIDTH: i32 = 960;
/// The height of one bar with the space around it. `HEAD` is the height of the title above all
/// bars.
const ROW: i32 = 30;
const HEAD: i32 = 64;
/// The horizontal positions at which the axis starts and ends; the labels are left of it, the
/// figures right.
const AXIS: (i32, i32) = (430, 880);

/// The fields of a result row that a chart shows.
#[derive(Debug, Deserialize)]
struct Measured {
    bench: String,
    store: String,
    concurrency: usize,
    reference_name: Option<String>,
    ratio: Option<f64>,
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    target: Option<String>,
    met: Option<bool>,
}

impl Measured {
    fn label(&self) -> String {
        let Self { bench, store, concurrency, .. } = self;
        let tasks = if *concurrency > 1 { format!(" ×{concurrency}") } else { String::new() };
        format!("{bench}, {store}{tasks}")
    }

    /// Returns the number in a target such as `>= 0.95`.
    fn target(&self) -> Option<f64> {
        self.target.as_ref()?.split_whitespace().last()?.parse().ok()
    }
}

/// The colours of a page.
struct Theme {
    name: &'static str,
    background: RGBColor,
    text: RGBColor,
    faint: RGBColor,
    met: RGBColor,
    missed: RGBColor,
}

const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        background: RGBColor(255, 255, 255),
        text: RGBColor(31, 35, 40),
        faint: RGBColor(140, 149, 159),
        met: RGBColor(26, 127, 100),
        missed: RGBColor(191, 93, 28),
    },
    Theme {
        name: "dark",
        background: RGBColor(13, 17, 23),
        text: RGBColor(230, 237, 243),
        faint: RGBColor(125, 133, 144),
        met: RGBColor(63, 185, 145),
        missed: RGBColor(227, 137, 74),
    },
];

/// Writes the charts of `json`, the results of one run, as `NAME-light.svg` and `NAME-dark.svg`
/// into `directory`. Returns their paths.
///
/// # Errors
/// If the results cannot be read or have no ratio with a target, or if the files cannot be written.
pub(crate) fn write(json: &str, directory: &Path, name: &str) -> Result<Vec<PathBuf>, BoxError> {
    let rows: Vec<Measured> = serde_json::from_str(json)?;
    let rows: Vec<Measured> =
        rows.into_iter().filter(|row| row.ratio.is_some() && row.target().is_some()).collect();
    if rows.is_empty() {
        return Err("the results have no ratio with a target".into());
    }
    std::fs::create_dir_all(directory)?;
    let mut paths = Vec::new();
    for theme in &THEMES {
        let path = directory.join(format!("{name}-{}.svg", theme.name));
        let svg = draw(&rows, name, theme).map_err(|error| error.to_string())?;
        std::fs::write(&path, svg)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

/// The ends of the axis, as powers of two, wide enough for every ratio.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(rows: &[Measured]) -> Self {
        let values = || {
            let of = |row: &Measured| [row.ratio, row.ratio_min, row.ratio_max, row.target()];
            rows.iter().flat_map(of).flatten().filter(|value| *value > 0.0)
        };
        let low = values().fold(0.5, f64::min).log2().floor();
        let high = values().fold(2.0, f64::max).log2().ceil();
        Self { low, high }
    }

    fn x(&self, ratio: f64) -> i32 {
        let share = (ratio.log2() - self.low) / (self.high - self.low);
        let (start, end) = (f64::from(AXIS.0), f64::from(AXIS.1));
        // The value lies between the ends of the axis, which are small.
        #[expect(clippy::cast_possible_truncation, reason = "a position on the page")]
        let x = (start + share.clamp(0.0, 1.0) * (end - start)).round() as i32;
        x
    }

    /// Returns the powers of two on the axis.
    fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let (mut next, high) = (self.low, self.high);
        std::iter::from_fn(move || {
            let tick = next;
            next += 1.0;
            (tick <= high).then(|| tick.exp2())
        })
    }
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn draw(
    rows: &[Measured],
    name: &str,
    theme: &Theme,
) -> Result<String, DrawingAreaErrorKind<std::io::Error>> {
    let count = i32::try_from(rows.len()).unwrap_or(i32::MAX / ROW);
    let bottom = HEAD + count * ROW;
    let size = (WIDTH.unsigned_abs(), (bottom + 34).unsigned_abs());
    let mut svg = String::new();
    {
        let page = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        page.fill(&theme.background)?;
        let scale = Scale::of(rows);
        let text = |size: i32, colour: RGBColor| ("sans-serif", size).into_font().color(&colour);
        let title = format!("{name}: ours ÷ reference in one run, right of 1 is faster");
        page.draw_text(&title, &text(17, theme.text), (16, 18))?;
        for tick in scale.ticks() {
            let x = scale.x(tick);
            let line = [(x, HEAD - 8), (x, bottom)];
            let width = if tick == 1.0 { 2 } else { 1 };
            page.draw(&PathElement::new(line, theme.faint.mix(0.5).stroke_width(width)))?;
            let centred = text(12, theme.faint).pos(Pos::new(HPos::Center, VPos::Top));
            page.draw_text(&format!("{tick}"), &centred, (x, bottom + 8))?;
        }
        for (number, row) in (0..).zip(rows) {
            bar(&page, row, &scale, theme, HEAD + number * ROW)?;
        }
        page.present()?;
    }
    Ok(svg)
}

fn bar<'a>(
    page: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    row: &Measured,
    scale: &Scale,
    theme: &Theme,
    top: i32,
) -> Drawn {
    let ratio = row.ratio.unwrap_or(1.0);
    let colour = if row.met == Some(true) { theme.met } else { theme.missed };
    let (from, to) = (scale.x(1.0).min(scale.x(ratio)), scale.x(1.0).max(scale.x(ratio)));
    page.draw(&Rectangle::new([(from, top + 4), (to, top + 18)], colour.filled()))?;
    if let (Some(min), Some(max)) = (row.ratio_min, row.ratio_max) {
        let spread = [(scale.x(min), top + 11), (scale.x(max), top + 11)];
        page.draw(&PathElement::new(spread, theme.text.stroke_width(1)))?;
    }
    if let Some(target) = row.target() {
        let x = scale.x(target);
        let tick = [(x, top), (x, top + 22)];
        page.draw(&PathElement::new(tick, theme.text.stroke_width(2)))?;
    }
    let font = |size: i32, colour: RGBColor| ("sans-serif", size).into_font().color(&colour);
    let right = Pos::new(HPos::Right, VPos::Top);
    let reference = row.reference_name.as_deref().unwrap_or_default();
    page.draw_text(&row.label(), &font(14, theme.text).pos(right), (AXIS.0 - 14, top))?;
    page.draw_text(reference, &font(11, theme.faint).pos(right), (AXIS.0 - 14, top + 15))?;
    page.draw_text(&format!("{ratio:.2}"), &font(14, colour), (AXIS.1 + 14, top + 3))
}
