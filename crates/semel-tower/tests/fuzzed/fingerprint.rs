//! Properties of the fingerprints of any bodies.

use semel_core::{Fingerprint, Pointer};

use crate::json::{Document, Meaning};
use crate::spelling::{Spelling, leaves, neighbours};

/// The number of places of a document that are changed; more would not test more.
const PLACES: usize = 4;
/// The largest number of pointers that are used.
const POINTERS: usize = 8;
/// Each variation of the spelling by itself, and all together.
const SPELLINGS: [Spelling; 5] = [Spelling(1), Spelling(2), Spelling(4), Spelling(8), Spelling(15)];

/// Checks one input: two bodies and some pointers, separated by NUL, which JSON cannot contain.
pub(crate) fn check(input: &[u8]) {
    let mut pieces = input.splitn(3, |byte| *byte == 0);
    let mut piece = || pieces.next().unwrap_or_default();
    let (one, two, pointers) = (piece(), piece(), piece());
    same_only_if_meant(one, two);
    let Meaning::Document(document) = Meaning::of(one) else {
        return raw(one);
    };
    encoding_and_order_make_no_difference(one, &document);
    every_change_makes_a_difference(one, &document);
    selection(&document);
    given_pointers(one, &document, pointers);
}

/// Checks that two bodies have the same fingerprint exactly if they mean the same.
fn same_only_if_meant(one: &[u8], two: &[u8]) {
    let meant = Meaning::of(one) == Meaning::of(two);
    let same = Fingerprint::of_body(one) == Fingerprint::of_body(two);
    assert_eq!(same, meant, "{} and {}", one.escape_ascii(), two.escape_ascii());
}

/// Checks that a body that is no JSON document has no parts, and differs from every document.
fn raw(body: &[u8]) {
    let print = Fingerprint::of_body(body);
    assert_eq!(print, Fingerprint::of_bytes(body), "{}", body.escape_ascii());
    let root = [Pointer::new("").expect("the root")];
    assert_eq!(print, Fingerprint::of_selected(body, &root, &root));
    assert_ne!(print, Fingerprint::of_body(&[body, b" "].concat()));
}

fn encoding_and_order_make_no_difference(body: &[u8], document: &Document) {
    let print = Fingerprint::of_body(body);
    assert_ne!(print, Fingerprint::of_bytes(body));
    assert_eq!(print, Fingerprint::of_selected(body, &[], &[]));
    for spelling in SPELLINGS {
        let text = spelling.write(document);
        assert_eq!(print, Fingerprint::of_body(text.as_bytes()), "{spelling:?}: {text}");
    }
}

fn every_change_makes_a_difference(body: &[u8], document: &Document) {
    let print = Fingerprint::of_body(body);
    for place in leaves(document).iter().take(PLACES) {
        for neighbour in neighbours(document, place) {
            let text = Spelling(0).write(&neighbour);
            assert_ne!(print, Fingerprint::of_body(text.as_bytes()), "{place}: {text}");
        }
    }
}

/// Checks that excluded parts make no difference and all others do, and the reverse for included
/// parts.
fn selection(document: &Document) {
    let text = Spelling(0).write(document);
    let places = leaves(document);
    let only =
        |body: &str, place: &[Pointer]| Fingerprint::of_selected(body.as_bytes(), place, &[]);
    let but = |body: &str, place: &[Pointer]| Fingerprint::of_selected(body.as_bytes(), &[], place);
    for pair in places.windows(2).take(PLACES / 2) {
        let (place, here) = (&pair[0], [Pointer::new(&pair[0]).expect("a pointer")]);
        let (rest, part) = (but(&text, &here), only(&text, &here));
        for neighbour in neighbours(document, place).iter().map(|other| Spelling(0).write(other)) {
            // Numbers that a double cannot hold make the body comparable by its bytes only.
            if matches!(Meaning::of(neighbour.as_bytes()), Meaning::Bytes(_)) {
                continue;
            }
            assert_eq!(rest, but(&neighbour, &here), "{place}: {neighbour}");
            assert_ne!(part, only(&neighbour, &here), "{place}: {neighbour}");
        }
        for neighbour in neighbours(document, &pair[1]) {
            let neighbour = Spelling(0).write(&neighbour);
            assert_ne!(rest, but(&neighbour, &here), "{place}: {neighbour}");
            if matches!(Meaning::of(neighbour.as_bytes()), Meaning::Document(_)) {
                assert_eq!(part, only(&neighbour, &here), "{place}: {neighbour}");
            }
        }
    }
}

/// Checks pointers from the input, one per line: whatever they point at, spelling makes no
/// difference.
fn given_pointers(body: &[u8], document: &Document, lines: &[u8]) {
    let lines = String::from_utf8_lossy(lines);
    let pointers: Vec<Pointer> =
        lines.lines().take(POINTERS).filter_map(|line| Pointer::new(line).ok()).collect();
    let (include, exclude) = pointers.split_at(pointers.len() / 2);
    let print = Fingerprint::of_selected(body, include, exclude);
    let text = Spelling(15).write(document);
    assert_eq!(print, Fingerprint::of_selected(text.as_bytes(), include, exclude), "{text}");
}
