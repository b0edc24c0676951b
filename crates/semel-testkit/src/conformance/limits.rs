//! Odd, large and extreme data: everything that the types allow reads back as it was written, and a
//! record that cannot be read is an error, never absent.

use std::time::Duration;

use semel_core::clock::micros;
use semel_core::store::{Change, Draft, ErrorKind, Filter, Settlement, Store};
use semel_core::{
    AttemptId, ErrorText, Fingerprint, OperationId, Outcome, Recorded, Reference, State, Timestamp,
};

use super::test_store::{
    BRIEF, KEEP, TestStore, assert_granted, draft, failure, key, lease, next, success,
};
use crate::fixture::Fixture;

impl<F: Fixture> TestStore<F> {
    async fn keeps(&self, id: &str, outcome: Recorded) {
        let first = draft(&key(id));
        let held = self.claim(&first).await;
        self.end(&held, &Settlement::Succeeded { outcome: outcome.clone(), keep: KEEP }).await;
        let (record, _) = self.existing(&first).await;
        // Not `assert_eq`, which would print 1 MiB.
        assert!(record.outcome == Some(outcome), "the outcome of {id} changed in the store");
    }
}

/// An empty outcome reads back as an outcome.
pub async fn an_empty_answer_reads_back_as_one<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.keeps("empty", Recorded::Whole(Outcome::empty())).await;
    test.keeps("json", Recorded::Whole(Outcome::new(Outcome::JSON, ""))).await;
    test.keeps("untyped", Recorded::Whole(Outcome::new("", ""))).await;
}

/// 1 MiB of all byte values reads back, and so do bodies of every short length.
pub async fn a_body_of_any_bytes_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let all: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    test.keeps("mebibyte", Recorded::Whole(Outcome::new(Outcome::EMPTY, all))).await;
    let mut fuzz = fastrand::Rng::with_seed(7);
    for length in [1, 2, 3, 255, 256, 257, 65_535, 65_536, 65_537] {
        let body: Vec<u8> = std::iter::repeat_with(|| fuzz.u8(..)).take(length).collect();
        let outcome = Outcome::new(Outcome::EMPTY, body);
        test.keeps(&format!("{length} bytes"), Recorded::Whole(outcome)).await;
    }
    let nul = Outcome::new(Outcome::EMPTY, vec![0; 64]);
    test.keeps("nul bytes", Recorded::Whole(nul)).await;
}

/// A content type may be any text.
pub async fn any_content_type_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let long = format!("application/{}", "x".repeat(243));
    for (at, content_type) in [
        Outcome::JSON,
        Outcome::EMPTY,
        "application/problem+json; charset=utf-8",
        "multipart/mixed; boundary=\"a'b\\c\"",
        "Text/HTML",
        "text/ünïcode 😀",
        &long,
    ]
    .into_iter()
    .enumerate()
    {
        let outcome = Outcome::new(content_type.to_owned(), "body");
        test.keeps(&format!("k{at}"), Recorded::Whole(outcome)).await;
    }
}

/// A reference of any text up to 128 bytes reads back, with an empty body.
pub async fn a_reference_of_full_length_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, text) in [&*"r".repeat(128), &*"😀".repeat(32), "r", " r", "r ", "R", "%", "é", "NULL"]
        .into_iter()
        .enumerate()
    {
        let reference = Reference::new(text).expect("at most 128 bytes");
        let outcome = Outcome::empty().with_reference(reference);
        test.keeps(&format!("k{at}"), Recorded::Whole(outcome)).await;
    }
}

/// The size of an omitted outcome reads back, whatever it is.
pub async fn the_size_of_an_omitted_answer_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for bytes in [0, 1, (1 << 53) + 1, i64::MAX.unsigned_abs(), u64::MAX] {
        test.keeps(&format!("{bytes}"), Recorded::Omitted { bytes }).await;
    }
}

/// The error text of a failure reads back: empty, full length in four-byte characters, and odd
/// ones.
pub async fn an_error_text_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let long = "😀".repeat(400);
    for (at, words) in
        ["", " ", &long, "a\nb\tc\r\u{1b}[31m", "'\"\\%_{}$1?", "\u{202e}\u{200b}", "x "]
            .into_iter()
            .enumerate()
    {
        let key = key(&format!("k{at}"));
        let held = test.claim(&draft(&key)).await;
        test.end(&held, &failure(words)).await;
        assert_eq!(test.record(&key).await.error, Some(ErrorText::new(words)));
    }
}

/// An owner with the longest host name reads back, and so does an odd one.
pub async fn an_owner_of_any_name_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let host = format!("{}:4294967295:01ARZ3NDEKTSV4RRFFQ69G5FAV", "h".repeat(253));
    for (at, owner) in [&*host, "", "ünï😀:1:'\"\\", " "].into_iter().enumerate() {
        let first = Draft { owner: owner.into(), ..draft(&key(&format!("k{at}"))) };
        let held = test.claim(&first).await;
        assert_granted(&test.record(&first.key).await, &first, held.fence);
    }
}

/// Identifiers of any bytes read back: zeros, ones and line ends.
pub async fn identifiers_of_any_bytes_read_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (at, byte) in [0x00, 0xff, b'\n', b'\\', 0x80].into_iter().enumerate() {
        let first = Draft {
            operation_id: OperationId::from_bytes(&[byte; 16]).expect("16 bytes"),
            attempt_id: AttemptId::from_bytes(&[byte; 16]).expect("16 bytes"),
            ..draft(&key(&format!("k{at}")))
        };
        let held = test.claim(&first).await;
        assert_granted(&test.record(&first.key).await, &first, held.fence);
        test.end(&held, &success("1")).await;
    }
}

/// Every kind of fingerprint reads back, the absent one included.
pub async fn fingerprints_of_every_making_read_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let unknown = Fingerprint::from_bytes(&[0xfe; 33]).expect("33 bytes");
    for (at, fingerprint) in [
        Fingerprint::none(),
        Fingerprint::opaque(""),
        Fingerprint::of_body(b"{\"a\":1}"),
        Fingerprint::of_bytes(&[0, 255]),
        Fingerprint::from_hex(&"Ab".repeat(32)).expect("hex"),
        unknown,
    ]
    .into_iter()
    .enumerate()
    {
        let first = Draft { fingerprint, ..draft(&key(&format!("k{at}"))) };
        test.claim(&first).await;
        assert_eq!(test.record(&first.key).await.fingerprint, fingerprint);
    }
}

/// The largest attempt number reads back.
pub async fn the_largest_attempt_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for attempt in [0, 1, i32::MAX.unsigned_abs(), i32::MAX.unsigned_abs() + 1, u32::MAX] {
        let first = Draft { attempt, ..draft(&key(&format!("{attempt}"))) };
        let held = test.claim(&first).await;
        assert_granted(&test.record(&first.key).await, &first, held.fence);
    }
}

/// Durations without end saturate, durations below a microsecond do no harm, and neither wraps
/// round.
pub async fn extreme_durations_saturate<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let century = Duration::from_secs(60 * 60 * 24 * 36_525);
    let spans = [
        Duration::MAX,
        Duration::from_micros(i64::MAX.unsigned_abs()),
        century * 50,
        Duration::from_micros(1),
        Duration::from_nanos(1_999),
        Duration::ZERO,
    ];
    for (at, span) in spans.into_iter().enumerate() {
        let first = Draft { lease: span, keep: span, ..draft(&key(&format!("k{at}"))) };
        let held = test.claim(&first).await;
        let running = test.record(&first.key).await;
        assert_granted(&running, &first, held.fence);
        let error = ErrorText::new("x");
        test.end(&held, &Settlement::Failed { error, retry_after: Some(span), keep: KEEP }).await;
        let failed = test.record(&first.key).await;
        assert_eq!(failed.retry_at, Some(failed.updated_at.after(span)), "{span:?}");
        assert_eq!(micros(failed.keep), micros(span), "{span:?}");
        let done = draft(&key(&format!("done{at}")));
        let held = test.claim(&done).await;
        let keep = span.max(BRIEF * 1_000);
        let outcome = Recorded::Whole(Outcome::empty());
        test.end(&held, &Settlement::Succeeded { outcome, keep }).await;
        let record = test.record(&done.key).await;
        assert_eq!(record.expires_at, Some(record.updated_at.after(keep)), "{keep:?}");
        if span == Duration::MAX {
            assert_eq!(running.lease_until, Some(Timestamp::from_micros(i64::MAX)));
            assert_eq!(failed.retry_at, Some(Timestamp::from_micros(i64::MAX)));
            assert_eq!(record.expires_at, Some(Timestamp::from_micros(i64::MAX)));
        }
    }
}

/// Every write of every operation increments the record's number by one.
pub async fn every_write_counts_one<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let mut expected = 1;
    let number = async |expected: u64, what: &str| {
        assert_eq!(test.record(&first.key).await.number, expected, "after {what}");
    };
    number(expected, "the claim").await;
    for _ in 0..3 {
        let _ = test.renew(&held, KEEP).await;
        expected += 1;
        number(expected, "a renewal").await;
    }
    test.end(&held, &failure("x")).await;
    number(expected + 1, "a failure").await;
    let second = next(&first);
    let fence = test.change(&first.key, &Change::Regrant(second.clone())).await;
    number(expected + 2, "a re-grant").await;
    test.end(&lease(&second, fence), &success("1")).await;
    number(expected + 3, "a success").await;
    test.change(&first.key, &Change::Settle(Settlement::Dead { error: ErrorText::new("x") })).await;
    number(expected + 4, "a burial").await;
    test.change(&first.key, &Change::Redrive).await;
    number(expected + 5, "a redrive").await;
}

/// A record that cannot be read is an error and not absent: its key is not granted again, and other
/// records can be read.
pub async fn a_damaged_record_is_an_error_and_not_an_absence<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let (first, neighbour) = (draft(&key("k")), draft(&key("neighbour")));
    let held = test.claim(&first).await;
    test.end(&held, &success("1")).await;
    test.claim(&neighbour).await;
    let Some(damage) = test.fixture.corrupt(&first.key) else {
        // Nothing can damage these records; the test only checks that they can be read.
        assert_eq!(test.record(&first.key).await.state, State::Succeeded);
        return;
    };
    damage.await;
    let peeked = test.store.peek(&first.key).await;
    let error = peeked.expect_err("a damaged record was read as if nothing were wrong");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let opened = test.store.open(&draft(&first.key)).await;
    let error = opened.expect_err("the key of a damaged record was opened");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    test.existing(&neighbour).await;
}

/// A listing returns all fields of a record unchanged.
pub async fn a_listing_shows_records_as_they_are<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let reference = Reference::new("ord_😀").expect("valid");
    let body: Vec<u8> = (0..=255).collect();
    let outcome = Outcome::new("text/ünï", body).with_reference(reference);
    let done = test.claim(&draft(&key("done"))).await;
    let settlement =
        Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep: Duration::MAX };
    test.end(&done, &settlement).await;
    let failed = test.claim(&Draft { attempt: u32::MAX, ..draft(&key("failed")) }).await;
    test.end(&failed, &failure(&"😀".repeat(256))).await;
    test.claim(&Draft { lease: Duration::MAX, ..draft(&key("running")) }).await;
    let omitted = test.claim(&draft(&key("omitted"))).await;
    let outcome = Recorded::Omitted { bytes: u64::MAX };
    test.end(&omitted, &Settlement::Succeeded { outcome, keep: KEEP }).await;
    let listed = test.list(&Filter::default(), 10).await;
    for id in ["done", "failed", "running", "omitted"] {
        let record = test.record(&key(id)).await;
        let entry = listed.iter().find(|entry| entry.key == key(id));
        let entry = entry.unwrap_or_else(|| panic!("{id} is not listed"));
        assert_eq!(entry.record, record, "{id}");
    }
}
