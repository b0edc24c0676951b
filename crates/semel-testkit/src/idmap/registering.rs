//! One binding at a time: what is new, what is there, what is in the way.

use semel_ids::map::{Binding, IdMap, Inserted, RegisterError, Registered, register};
use semel_ids::resource::{Resource, ResourceType};
use semel_ids::{Codec, TypedId};
use ulid::Ulid;

use super::IdMapFixture;
use super::shorthand::*;

/// What was inserted is found, with all that was given.
pub async fn a_new_binding_is_found<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    assert!(is_absent(&map, &order).await);
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::New);
    assert_eq!(find(&map, &[&order]).await, [Some(row(&order, true))]);
}

/// The same binding again is there already, and is still one row.
pub async fn the_same_binding_again_is_there_already<F: IdMapFixture>(fixture: F) {
    let (map, order) = (fixture.map().await, order(1));
    for expected in [Inserted::New, Inserted::Already, Inserted::Already] {
        assert_eq!(insert(&fixture, &map, &order).await, expected);
    }
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// A revoked id is not given out again, and stays revoked.
pub async fn a_revoked_binding_is_not_made_live_by_inserting_it<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = holding(&fixture, std::slice::from_ref(&order)).await;
    revoke(&map, &order).await;
    assert_eq!(insert(&fixture, &map, &order).await, Inserted::Revoked);
    assert_eq!(find(&map, &[&order]).await, [Some(row(&order, false))]);
}

/// A public id stands for one thing.
pub async fn a_public_id_is_bound_once<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    assert_eq!(first.public(), second.public());
    let map = holding(&fixture, std::slice::from_ref(&first)).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert_eq!(all(&map, ORDER).await, [row(&first, true)]);
}

/// A thing has one public id.
pub async fn an_internal_id_is_bound_once<F: IdMapFixture>(fixture: F) {
    let order = order(1);
    let map = holding(&fixture, std::slice::from_ref(&order)).await;
    assert_eq!(insert(&fixture, &map, &renamed(&order)).await, Inserted::Conflict);
    assert_eq!(all(&map, ORDER).await, [row(&order, true)]);
}

/// A revoked row keeps both its ids from others.
pub async fn a_revoked_row_is_still_in_the_way<F: IdMapFixture>(fixture: F) {
    let ((first, second), order) = (ambiguous(ACME), order(1));
    let map = holding(&fixture, &[first.clone(), order.clone()]).await;
    revoke(&map, &first).await;
    revoke(&map, &order).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert_eq!(insert(&fixture, &map, &renamed(&order)).await, Inserted::Conflict);
}

/// A binding whose two ids are taken by two rows is one conflict, and changes neither.
pub async fn a_binding_between_two_rows_is_a_conflict<F: IdMapFixture>(fixture: F) {
    let (first, second) = ambiguous(ACME);
    let rival = renamed(&second);
    let map = holding(&fixture, &[first.clone(), rival.clone()]).await;
    assert_eq!(insert(&fixture, &map, &second).await, Inserted::Conflict);
    assert!(is_live(&map, &first).await && is_live(&map, &rival).await);
}

/// The same ids of another tenant are another row.
pub async fn tenants_do_not_meet<F: IdMapFixture>(fixture: F) {
    let (ours, theirs) = (order_of("acme", 1), order_of("other", 1));
    let map = holding(&fixture, std::slice::from_ref(&ours)).await;
    assert!(is_absent(&map, &theirs).await);
    assert_eq!(insert(&fixture, &map, &theirs).await, Inserted::New);
    assert_eq!(insert(&fixture, &map, &renamed(&ours)).await, Inserted::Conflict);
    assert!(is_live(&map, &ours).await && is_live(&map, &theirs).await);
}

/// The same ids of another type are another row.
pub async fn types_do_not_meet<F: IdMapFixture>(fixture: F) {
    enum Draft {}
    impl Resource for Draft {
        const TYPE: ResourceType = ResourceType::new("ORDER_DRAFT", "ord");
    }
    let (order, draft) = (order(1), Binding::of::<Draft>(ACME, TypedId::new(id(1))));
    let draft = draft.expect("a tenant");
    assert_eq!(order.public(), draft.public());
    let map = holding(&fixture, std::slice::from_ref(&order)).await;
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

/// Public ids are compared byte for byte: those in base62 differ in case alone.
pub async fn public_ids_that_differ_in_case_are_different<F: IdMapFixture>(fixture: F) {
    let (map, codec) = (fixture.map().await, Codec::new().base62());
    let mut bindings = Vec::new();
    for payload in ["AbCdEfGhIjKlMnOpQrStUv", "aBcDeFgHiJkLmNoPqRsTuV", "ABCDEFGHIJKLMNOPQRSTUV"] {
        // Seven is the largest first digit of any id.
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

/// Internal ids are any sixteen bytes.
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

/// The longest public id that there is.
pub async fn a_public_id_of_full_length_reads_back<F: IdMapFixture>(fixture: F) {
    const LONG: ResourceType = ResourceType::new("A_TYPE_WITH_A_NAME_OF_FULL_LENGT", "abcdefghi0");
    let codec = Codec::new().checksum();
    let binding = written(&codec, &"t".repeat(64), LONG, Ulid(u128::MAX));
    assert_eq!(binding.public().len(), semel_ids::codec::MAX_PUBLIC_ID);
    let map = holding(&fixture, std::slice::from_ref(&binding)).await;
    assert!(is_live(&map, &binding).await);
    assert_eq!(all(&map, LONG).await, [row(&binding, true)]);
}

/// Registering reports a conflict as an error.
pub async fn registering_is_loud<F: IdMapFixture>(fixture: F) {
    let (map, taken, revoked) = (fixture.map().await, order(1), order(2));
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    let told = register(&map, connection, &taken).await;
    assert_eq!(told.expect("it is free"), Registered::New);
    assert_eq!(register(&map, connection, &taken).await.expect("it is ours"), Registered::Already);
    assert_eq!(register(&map, connection, &revoked).await.expect("free"), Registered::New);
    fixture.commit(&map, transaction).await;
    revoke(&map, &revoked).await;
    let mut transaction = fixture.begin(&map).await;
    let connection = F::connection(&mut transaction);
    let told = register(&map, connection, &renamed(&taken)).await;
    assert!(matches!(told, Err(RegisterError::Conflict { .. })), "{told:?}");
    let told = register(&map, connection, &revoked).await;
    assert!(matches!(told, Err(RegisterError::Revoked { .. })), "{told:?}");
    fixture.commit(&map, transaction).await;
}
