//! The time to handle one id, in nanoseconds, beside the `ulid` crate.

use std::hint::black_box;
use std::time::Instant;

use semel_ids::{Codec, Generator, Resource as _, resource};
use ulid::Ulid;

use super::{Ids, label};
use crate::BoxError;
use crate::arguments::Arguments;
use crate::report::{Report, Target};

/// The number of ids per turn.
const TURN: usize = 200_000;

/// Measures nanoseconds per id, one value per round, in turns with the other library.
fn compete(
    rounds: usize,
    mut ours: impl FnMut(usize),
    mut theirs: impl FnMut(usize),
) -> (Vec<f64>, Vec<f64>) {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.push(turn(&mut ours));
        two.push(turn(&mut theirs));
    }
    (one, two)
}

fn turn(once: &mut impl FnMut(usize)) -> f64 {
    let began = Instant::now();
    for number in 0..TURN {
        once(number);
    }
    began.elapsed().as_nanos() as f64 / TURN as f64
}

pub(super) fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let ids = Ids::new()?;
    let plain: Vec<String> = ids.ids.iter().map(|id| id.ulid().to_string()).collect();
    let prefix = resource::Order::TYPE.prefix();
    let rounds = arguments.pace.rounds;
    let at = |number: usize| number % ids.ids.len();
    let mut row = |bench, (ours, theirs): (Vec<f64>, Vec<f64>), name, target| {
        report.compare(label(bench, "", 1), "ns", &ours, (name, &theirs), target);
    };

    let (ours, mut theirs) = (Generator::new(), ulid::Generator::new());
    let made = compete(
        rounds,
        |_| assert!(black_box(ours.generate()).is_ok()),
        |_| assert!(black_box(theirs.generate()).is_ok()),
    );
    row("id-generate", made, "ulid, monotonic generator", None);
    for (name, codec) in codecs() {
        // Both sides read texts, because ids come from outside.
        let texts = ids.ids.iter().map(|id| codec.encode(prefix, id.ulid()).to_string());
        let texts: Vec<String> = texts.collect();
        // Only the plain form is compared, because the other crate has only the plain form.
        let target = (name == "id").then_some(Target::AtMost(1.5));
        let (encode, decode) = match name {
            "id" => ("id-encode", "id-decode"),
            "id, checksum" => ("id-encode checksum", "id-decode checksum"),
            _ => ("id-encode base62", "id-decode base62"),
        };
        let written = compete(
            rounds,
            |number| {
                let _ = black_box(codec.encode(prefix, ids.ids[at(number)].ulid()));
            },
            |number| drop(black_box(ids.ids[at(number)].ulid().to_string())),
        );
        row(encode, written, "ulid, to_string", target);
        let read = compete(
            rounds,
            |number| assert!(black_box(codec.decode(&texts[at(number)])).is_ok()),
            |number| assert!(black_box(Ulid::from_string(&plain[at(number)])).is_ok()),
        );
        row(decode, read, "ulid, from_string", target);
    }
    Ok(())
}

fn codecs() -> [(&'static str, Codec); 3] {
    [
        ("id", Codec::new()),
        ("id, checksum", Codec::new().checksum()),
        ("id, base62", Codec::new().base62()),
    ]
}
