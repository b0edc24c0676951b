//! Tests that any record can be written and read back, and that reading never panics.

use proptest::prelude::*;
use semel_core::store::Draft;

use super::*;

/// Returns the bytes that the scripts would write for `entry`, without a server.
fn encode(entry: &Entry) -> Vec<u8> {
    let Entry { key, record } = entry;
    let micros = |moment: Option<Timestamp>| moment.map_or(0, Timestamp::as_micros).to_be_bytes();
    let since = |base: Option<Timestamp>, moment: Option<Timestamp>| {
        moment.zip(base).map(|(moment, base)| moment.remaining(base).unwrap_or_default())
    };
    let mut bytes = head(record.state).to_vec();
    bytes.extend(record.fence.0.to_be_bytes());
    bytes.extend(record.attempt_id.to_bytes());
    bytes.extend(record.number.to_be_bytes());
    bytes.extend(micros(Some(record.updated_at)));
    bytes.extend(micros(record.completed_at));
    bytes.extend(micros(Some(record.created_at)));
    bytes.extend(spans(
        since(Some(record.updated_at), record.lease_until),
        since(record.completed_at, record.retry_at),
        since(record.completed_at, record.expires_at),
    ));
    let draft = Draft {
        key: key.clone(),
        fingerprint: record.fingerprint,
        operation_id: record.operation_id,
        attempt_id: record.attempt_id,
        attempt: record.attempt,
        owner: record.owner.as_ref().into(),
        lease: Duration::ZERO,
        on_crash: record.on_crash,
        keep: record.keep,
        retry_payload: None,
    };
    let claim = claim(&draft).unwrap();
    bytes.extend(&claim[24..claim.len() - EMPTY_TAIL.len()]);
    let recorded = record.outcome.clone().or(record.retry_payload.clone().map(Recorded::Whole));
    bytes.extend(tail(record.error.as_ref(), recorded.as_ref()).unwrap());
    if recorded.is_none() {
        bytes.push(0);
    }
    bytes
}

fn moment() -> impl Strategy<Value = Timestamp> {
    (1i64..1 << 53).prop_map(Timestamp::from_micros)
}

fn later() -> impl Strategy<Value = Option<Duration>> {
    let spans = prop_oneof![0u64..1 << 40, 0..=i64::MAX.unsigned_abs()];
    proptest::option::of(spans.prop_map(Duration::from_micros))
}

fn outcomes() -> impl Strategy<Value = Option<Recorded>> {
    let whole = (any::<Vec<u8>>(), ".{0,40}", proptest::option::of("[a-z0-9é]{1,40}")).prop_map(
        |(body, kind, reference)| {
            let outcome = Outcome::new(kind, body);
            let reference = reference.map(|text| Reference::new(&text).unwrap());
            Recorded::Whole(match reference {
                Some(reference) => outcome.with_reference(reference),
                None => outcome,
            })
        },
    );
    let omitted = any::<u64>().prop_map(|bytes| Recorded::Omitted { bytes });
    proptest::option::of(prop_oneof![whole, omitted])
}

fn keys() -> impl Strategy<Value = Key> {
    let texts = ("[^\\p{Cc}\\s]{1,16}", "[^\\p{Cc}\\s]{1,32}", "[^\\p{Cc}\\s]{1,63}");
    let kinds = (1u8..=5).prop_map(|code| Kind::from_code(code).unwrap());
    let principals = proptest::option::of(any::<[u8; 4]>());
    (kinds, texts, principals).prop_map(|(kind, (tenant, scope, id), principal)| {
        let principal = principal.map_or(Principal::global(), Principal::of);
        Key::new(kind, &tenant, &scope, principal, &id).unwrap()
    })
}

prop_compose! {
    fn entries()(
        key in keys(),
        (state, on_crash) in (0u8..5, 0u8..3),
        (fence, number, attempt) in (0..1u64 << 53, 0..1u64 << 53, any::<u32>()),
        (operation_id, attempt_id) in (any::<[u8; 16]>(), any::<[u8; 16]>()),
        fingerprint in proptest::option::of(any::<Vec<u8>>()),
        owner in ".{0,60}",
        error in proptest::option::of(".{0,300}"),
        outcome in outcomes(),
        (created_at, updated_at) in (moment(), moment()),
        completed_at in proptest::option::of(moment()),
        (lease, retry, expiry) in (later(), later(), later()),
        keep in 0..=i64::MAX.unsigned_abs(),
    ) -> Entry {
        let due = |span: Option<Duration>| completed_at.zip(span).map(|(at, span)| at.after(span));
        let state = State::from_code(state).unwrap();
        let (outcome, retry_payload) = match (state, outcome) {
            (State::Succeeded, outcome) => (outcome, None),
            (_, Some(Recorded::Whole(retry_payload))) => (None, Some(retry_payload)),
            (_, _) => (None, None),
        };
        Entry {
            key,
            record: Record {
                number,
                fingerprint: fingerprint.map_or(Fingerprint::none(), |b| Fingerprint::of_bytes(&b)),
                state,
                operation_id: OperationId::from_bytes(&operation_id).unwrap(),
                attempt_id: AttemptId::from_bytes(&attempt_id).unwrap(),
                attempt,
                fence: Fence(fence),
                owner: owner.into(),
                lease_until: lease.map(|span| updated_at.after(span)),
                retry_at: due(retry),
                on_crash: OnCrash::from_code(on_crash).unwrap(),
                keep: Duration::from_micros(keep),
                outcome,
                retry_payload,
                error: error.as_deref().map(ErrorText::new),
                created_at,
                updated_at,
                completed_at,
                expires_at: due(expiry),
            },
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back(entry in entries()) {
        let bytes = Bytes::from(encode(&entry));
        prop_assert_eq!(decode(bytes.clone()), Ok(entry.record.clone()));
        prop_assert_eq!(decode_entry(bytes), Ok(entry));
    }

    #[test]
    fn an_outline_is_the_record_without_its_body(entry in entries()) {
        let mut bytes = Bytes::from(encode(&entry));
        let (mut bodiless, mut size) = (entry, None);
        let Record { outcome, retry_payload, .. } = &mut bodiless.record;
        let whole = match outcome {
            Some(Recorded::Whole(outcome)) => Some(outcome),
            Some(Recorded::Omitted { .. }) | None => retry_payload.as_mut(),
        };
        if let Some(whole) = whole {
            size = Some(whole.body().len() as u64);
            let empty = Outcome::new(whole.content_type().to_owned(), Bytes::new());
            *whole = match whole.reference() {
                Some(reference) => empty.with_reference(reference.clone()),
                None => empty,
            };
        }
        bytes.truncate(OUTLINE);
        prop_assert_eq!(decode_outline(bytes), Ok((bodiless, size)));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
        let _ = decode_outline(Bytes::from(bytes.clone()));
        let _ = decode_entry(Bytes::from(bytes));
    }

    #[test]
    fn a_damaged_record_is_read_or_refused(
        entry in entries(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = encode(&entry);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode_outline(Bytes::from(bytes.clone()));
        let _ = decode_entry(Bytes::from(bytes));
    }

    #[test]
    fn a_record_that_was_cut_or_grew_is_refused(
        entry in entries(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(&entry);
        let cut = Bytes::copy_from_slice(&bytes[..at.index(bytes.len())]);
        prop_assert!(decode(cut).is_err());
        bytes.push(0);
        prop_assert!(decode(Bytes::from(bytes)).is_err());
    }
}

#[test]
fn a_claim_contains_its_retry_payload() {
    let retry_payload = Outcome::new("text/plain", "the letter")
        .with_reference(Reference::new("letter.sent").unwrap());
    let draft = Draft {
        key: Key::command("t", "s", "i").unwrap(),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "host:1:a".into(),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(60),
        retry_payload: Some(retry_payload.clone()),
    };
    // As open.lua builds it.
    let mut bytes = head(State::Running).to_vec();
    bytes.extend(77u64.to_be_bytes());
    bytes.extend(draft.attempt_id.to_bytes());
    for number in [1u64, 5, 0, 5] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(claim(&draft).unwrap());
    let record = decode(Bytes::from(bytes)).unwrap();
    assert_eq!((record.retry_payload, record.outcome), (Some(retry_payload), None));
}

#[test]
fn an_omitted_retry_payload_is_refused() {
    let omitted = tail(None, Some(&Recorded::Omitted { bytes: 7 })).unwrap();
    let mut bytes = head(State::Failed).to_vec();
    bytes.resize(HEADER, 0);
    // Times and spans that a failed record has, and the shortest identity.
    bytes[34..42].copy_from_slice(&5u64.to_be_bytes());
    bytes[50..58].copy_from_slice(&5u64.to_be_bytes());
    bytes[58..82].copy_from_slice(&[0xff; 24]);
    let identity = [0, 0, 0, 0, 0, 0, 0, 0];
    bytes[111..113].copy_from_slice(&8u16.to_be_bytes());
    bytes.extend(identity);
    bytes.extend(omitted);
    let error = decode(Bytes::from(bytes)).unwrap_err();
    assert!(error.contains("retry_payload"), "{error}");
}

#[test]
fn the_error_of_a_newer_layout_advises_an_upgrade() {
    let error = decode(Bytes::from(vec![LAYOUT + 1; 200])).unwrap_err();
    assert!(error.contains("upgrade"), "{error}");
}

#[test]
fn the_guards_have_the_offsets_of_the_bytes_that_they_compare() {
    let digest = Key::command("t", "s", "i").unwrap().digest();
    let attempt_id = AttemptId::generate();
    let mut bytes = vec![LAYOUT, State::Running.code()];
    bytes.extend(77u64.to_be_bytes());
    bytes.extend(attempt_id.to_bytes());
    bytes.extend(5u64.to_be_bytes());
    let guards = [
        Guard::lease(&Lease { digest, fence: Fence(77), attempt_id }),
        Guard::version(Version { attempt_id, number: 5 }),
    ];
    for guard in guards {
        let (first, last): (usize, usize) =
            (guard.first.parse().unwrap(), guard.last.parse().unwrap());
        assert_eq!(&bytes[first - 1..last], guard.expected);
    }
}
