//! Inserts of single bindings: new, already there, or in conflict.

use semel_ids::map::{Binding, IdMap, Inserted, RegisterError, Registered, register};
use semel_ids::resource::{Resource, ResourceType};
use semel_ids::{Codec, TypedId};
use ulid::Ulid;

use super::IdMapFixture;
use super::shorthand::*;

/// An inserted binding is found, with all its fields.
pub async fn a_new_binding_is_found<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    assert!(is_absent(&map, &order).await);
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::New);
    assert_eq!(find(&map, &[&order]).await, [Some(row(&order, true))]);
}

/// Inserting the same binding again returns `Already` and adds no row.
pub async fn the_same_binding_again_is_there_already<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    for expected in [Inserted::New, Inserted::Already, Inserted::Already] {
        assert_eq!(insert(&fixture, &map, &order).await, expected);
    }
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// Inserting a revoked binding returns `Revoked`, and it stays revoked.
pub async fn a_revoked_binding_is_not_made_live_by_inserting_it<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = map_with(&fixture, std::slice::from_ref(&order)).await;
    revoke(&map, &order).await;
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::Revoked);
    assert_eq!(find(&map, &[&order]).await, [Some(row(&order, false))]);
}

/// A public id is bound to one internal id.
pub async fn a_public_id_is_bound_once<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    assert_eq!(first.public(), second.public());
    let map = map_with(&fixture, std::slice::from_ref(&first)).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert_eq!(all(&map, ORDER).await, [row(&first, true)]);
}

/// An internal id is bound to one public id.
pub async fn an_internal_id_is_bound_once<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = map_with(&fixture, std::slice::from_ref(&order)).await;
    assert_eq!(insert(&fixture, &map, &renamed(&order)).await, Inserted::Conflict);
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// A revoked row still conflicts with other bindings of its two ids.
pub async fn a_revoked_row_is_still_in_the_way<F: IdMapFixture>(fixture: F) {
    let ((first, second), order) = (ambiguous(ACME), order(1));
    let map = map_with(&fixture, &[first.clone(), order.clone()]).await;
    revoke(&map, &first).await;
    revoke(&map, &order).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert_eq!(insert(&fixture, &map, &renamed(&order)).await, Inserted::Conflict);
}

/// A binding whose two ids belong to two different rows is a conflict, and changes neither row.
pub async fn a_binding_between_two_rows_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let rival = renamed(&second);
    let map = map_with(&fixture, &[first.clone(), rival.clone()]).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert!(is_live(&map, &first).await && is_live(&map, &rival).await);
}

/// The same ids under another tenant are another row.
pub async fn tenants_do_not_meet<F: IdMapFixture>(fixture: F) {
    let (ours, theirs) = (order_of("acme", 1), order_of("other", 1));
    let map = map_with(&fixture, std::slice::from_ref(&ours)).await;
    assert!(is_absent(&map, &theirs).await);
    assert_eq!(insert(&fixture, &map, &theirs).await, Inserted::New);
    assert_eq!(insert(&fixture, &map, &renamed(&ours)).await, Inserted::Conflict);
    assert!(is_live(&map, &ours).await && is_live(&map, &theirs).await);
}

/// The same ids under another type are another row.
pub async fn types_do_not_meet<F: IdMapFixture>(fixture: F) {
    enum Draft {}
    impl Resource for Draft {
        const TYPE: ResourceType = ResourceType::new("ORDER_DRAFT", "ord");
    }
    let (order, draft) = (order(1), Binding::of::<Draft>(ACME, TypedId::new(id(1))));
    let draft = draft.expect("a tenant");
    assert_eq!(order.public(), draft.public());
    let map = map_with(&fixture, std::slice::from_ref(&order)).await;
    assert!(is_absent(&map, &draft).await);
    assert_eq!(insert(&fixture, &map, &draft).await, Inserted::New);
    revoke(&map, &order).await;
    assert!(is_live(&map, &draft).await);
}

/// Tenants are compared byte for byte.
pub async fn tenants_that_differ_in_anything_are_different<F: IdMapFixture>(fixture: F) {
    let full = "x".repeat(63);
    let tenants = [
        "acme",
        "Acme",
        "ACME",
        "acme ",
        " acme",
        "acmé",
        "acme\u{301}",
        "ａｃｍｅ",
        "ac%me",
        "ac_me",
        "ac'me",
        "ac\"me",
        "ac\\me",
        "🦀",
        "🐟",
        "\u{200b}acme",
        "ﬁ",
        "fi",
        "ß",
        "ss",
        &format!("{full}a"),
        &format!("{full}b"),
    ];
    let bindings: Vec<Binding> = tenants.iter().map(|tenant| order_of(tenant, 1)).collect();
    let map = fixture.map().await;
    for binding in &bindings {
        let inserted = insert(&fixture, &map, binding).await;
        assert_eq!(inserted, Inserted::New, "{:?}", binding.tenant());
    }
    revoke(&map, &bindings[0]).await;
    let live: Vec<bool> = all(&map, ORDER).await.iter().map(|row| row.live).collect();
    assert_eq!(live.len(), tenants.len());
    assert_eq!(live.iter().filter(|live| !**live).count(), 1);
    let again = map.insert_many(&bindings).await.expect("the map answers");
    assert_eq!(again[0], Inserted::Revoked);
    assert!(again[1..].iter().all(|answer| *answer == Inserted::Already), "{again:?}");
}

/// Public ids are compared byte for byte: ids in base62 can differ in case alone.
pub async fn public_ids_that_differ_in_case_are_different<F: IdMapFixture>(fixture: F) {
    let (map, codec) = (fixture.map().await, Codec::new().base62());
    let mut bindings = Vec::new();
    for payload in ["AbCdEfGhIjKlMnOpQrStUv", "aBcDeFgHiJkLmNoPqRsTuV", "ABCDEFGHIJKLMNOPQRSTUV"] {
        // A leading 0 keeps the id within 128 bits.
        let text = format!("ord_0{}", &payload[1..]);
        let (_, internal) = codec.decode(&text).expect("base62");
        bindings.push(Binding::checked(ACME, ORDER, &codec, &text, internal).expect("belongs"));
    }
    for binding in &bindings {
        assert_eq!(insert(&fixture, &map, binding).await, Inserted::New);
    }
    revoke(&map, &bindings[1]).await;
    let found = map.find(ACME, ORDER, &publics(&bindings)).await.expect("the map answers");
    assert_eq!(found.iter().filter(|row| row.live).count(), 2);
    assert!(is_live(&map, &bindings[0]).await && is_live(&map, &bindings[2]).await);
}

/// Any sixteen bytes are a valid internal id.
pub async fn internal_ids_of_any_bytes_read_back<F: IdMapFixture>(fixture: F) {
    let map = fixture.map().await;
    let bytes = (0..=255_u8).step_by(17).map(|byte| [byte; 16]);
    let ids =
        bytes.map(Ulid::from_bytes).chain([Ulid(0), Ulid(u128::MAX), Ulid(1), Ulid(1 << 127)]);
    for internal in ids {
        let binding = written(&Codec::new(), ACME, ORDER, internal);
        let _ = insert(&fixture, &map, &binding).await;
        assert!(is_live(&map, &binding).await, "{internal}");
    }
}

/// The longest possible public id is stored and found.
pub async fn a_public_id_of_full_length_reads_back<F: IdMapFixture>(fixture: F) {
    const LONG: ResourceType = ResourceType::new("A_TYPE_WITH_A_NAME_OF_FULL_LENGT", "abcdefghi0");
    let codec = Codec::new().checksum();
    let binding = written(&codec, &"t".repeat(64), LONG, Ulid(u128::MAX));
    assert_eq!(binding.public().len(), semel_ids::codec::MAX_PUBLIC_ID);
    let map = map_with(&fixture, std::slice::from_ref(&binding)).await;
    assert!(is_live(&map, &binding).await);
    assert_eq!(all(&map, LONG).await, [row(&binding, true)]);
}

/// `register` returns an error for a conflicting or revoked binding.
pub async fn registering_reports_a_conflict_as_an_error<F: IdMapFixture>(fixture: F) {
    let (map, taken, revoked) = (fixture.map().await, order(1), order(2));
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    let returned = register(&map, connection, &taken).await;
    assert_eq!(returned.expect("the ids are free"), Registered::New);
    assert_eq!(
        register(&map, connection, &taken).await.expect("the same binding again"),
        Registered::Already
    );
    assert_eq!(register(&map, connection, &revoked).await.expect("free"), Registered::New);
    fixture.commit(&map, transaction).await;
    revoke(&map, &revoked).await;
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    let returned = register(&map, connection, &renamed(&taken)).await;
    assert!(matches!(returned, Err(RegisterError::Conflict { .. })), "{returned:?}");
    let returned = register(&map, connection, &revoked).await;
    assert!(matches!(returned, Err(RegisterError::Revoked { .. })), "{returned:?}");
    fixture.commit(&map, transaction).await;
}
