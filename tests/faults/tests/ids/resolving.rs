//! Two nodes that share one map and one Redis.

use std::sync::Arc;
use std::time::Duration;

use semel_ids::ResolveReason;
use semel_ids::resource::Order;
use semel_testkit::proxy::Direction;

use crate::fixture::{ACME, IdFixture, Whole, new_id, on_each_database, reason, until};

on_each_database! {
    every_level_answers_what_the_map_says
    a_new_id_is_known_here_at_once_and_elsewhere_soon
    readers_that_race_a_commit_leave_no_absence
    a_revoked_id_is_gone_here_at_once_and_elsewhere_soon
    without_redis_the_map_answers
    damaged_entries_in_redis_are_skipped_and_repaired
    another_tenant_finds_nothing
}

async fn every_level_answers_what_the_map_says<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let (one, two) = (fixture.node().await, fixture.node().await);
    let (id, never) = (new_id(), new_id());
    drop(fixture.register(&one, id).await);
    assert_eq!(reason(&one, id).await, ResolveReason::HitDb);
    assert_eq!(reason(&one, id).await, ResolveReason::HitL1);
    // The missing entry is written to Redis after the answer.
    let mut third = fixture.node().await;
    let began = std::time::Instant::now();
    while reason(&third, id).await != ResolveReason::HitL2 {
        assert!(began.elapsed() < Duration::from_secs(60), "Redis was never used");
        third = fixture.node().await;
    }
    let texts = [id.to_string(), never.to_string(), "ord_".to_owned()];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let answers = two.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
    let reasons: Vec<ResolveReason> = answers.iter().map(|answer| answer.reason).collect();
    assert_eq!(
        reasons,
        [ResolveReason::HitL2, ResolveReason::NotFound, ResolveReason::InvalidFormat]
    );
    fixture.private.remove().await;
}

async fn a_new_id_is_known_here_at_once_and_elsewhere_soon<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let (one, two) = (fixture.node().await, fixture.node().await);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let id = new_id();
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
        assert_eq!(reason(&two, id).await, ResolveReason::NotFound);
        fixture.register(&one, id).await.committed();
        assert_eq!(reason(&one, id).await, ResolveReason::HitL1);
        // A cached absence lasts 30 s without an invalidation.
        longest = longest.max(until(&two, id, true).await);
    }
    println!("known to the other node after {longest:?} at most, of 20");
    fixture.private.remove().await;
}

async fn readers_that_race_a_commit_leave_no_absence<S: Whole>() {
    let fixture = Arc::new(IdFixture::<S>::new().await);
    let (one, two) = (fixture.node().await, fixture.node().await);
    for _ in 0..60 {
        let id = new_id();
        let readers: Vec<_> = [&one, &two, &one, &two]
            .into_iter()
            .map(|node| {
                let node = node.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        reason(&node, id).await;
                        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..400))).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
        fixture.register(&one, id).await.committed();
        assert_ne!(
            reason(&one, id).await,
            ResolveReason::NotFound,
            "found at once on the node that registered it"
        );
        for reader in readers {
            reader.await.expect("no panic");
        }
        assert_ne!(reason(&one, id).await, ResolveReason::NotFound);
        until(&two, id, true).await;
    }
    if let Some(fixture) = Arc::into_inner(fixture) {
        fixture.private.remove().await;
    }
}

async fn a_revoked_id_is_gone_here_at_once_and_elsewhere_soon<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let (one, two) = (fixture.node().await, fixture.node().await);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let id = new_id();
        fixture.register(&one, id).await.committed();
        until(&two, id, true).await;
        let revoked = one.revoke(ACME, id).await.expect("revoked");
        assert!(revoked.was_live);
        assert_eq!(reason(&one, id).await, ResolveReason::NotFound);
        longest = longest.max(until(&two, id, false).await);
        assert!(!fixture.is_mapped(id).await);
    }
    println!("gone from the other node after {longest:?} at most, of 20");
    // A node that receives no invalidations stops trusting its cache well before ten minutes.
    let (one, two) = (fixture.hasty_node().await, fixture.hasty_node().await);
    let id = new_id();
    fixture.register(&one, id).await.committed();
    until(&two, id, true).await;
    fixture.proxy.blackhole(Direction::Requests);
    fixture.proxy.blackhole(Direction::Replies);
    one.revoke(ACME, id).await.expect("the map has it");
    let deaf = until(&two, id, false).await;
    println!("gone from a node without invalidations after {deaf:?}");
    fixture.private.remove().await;
}

async fn without_redis_the_map_answers<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.hasty_node().await;
    let (known, unknown) = (new_id(), new_id());
    drop(fixture.register(&node, known).await);
    fixture.proxy.reset_all();
    fixture.proxy.blackhole(Direction::Requests);
    fixture.proxy.blackhole(Direction::Replies);
    assert_eq!(reason(&node, known).await, ResolveReason::HitDb);
    assert_eq!(reason(&node, unknown).await, ResolveReason::NotFound);
    let fresh = new_id();
    fixture.register(&node, fresh).await.committed();
    assert_ne!(reason(&node, fresh).await, ResolveReason::NotFound);
    assert!(fixture.proxy.faults().held > 0, "Redis was unreachable");
    fixture.proxy.heal();
    // Redis is used again without any intervention.
    let began = std::time::Instant::now();
    loop {
        let id = new_id();
        fixture.plant(id, &base64(id.to_bytes())).await;
        if reason(&node, id).await == ResolveReason::HitL2 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "Redis was never used again");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    fixture.private.remove().await;
}

async fn damaged_entries_in_redis_are_skipped_and_repaired<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    for damage in ["", "garbage", "bnVsbA==", &base64(new_id().to_bytes())] {
        let id = new_id();
        drop(fixture.register(&node, id).await);
        fixture.plant(id, damage).await;
        assert_eq!(reason(&node, id).await, ResolveReason::HitDb, "{damage:?}");
        let began = std::time::Instant::now();
        loop {
            let other = fixture.node().await;
            if reason(&other, id).await == ResolveReason::HitL2 {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{damage:?} was never repaired");
        }
    }
    fixture.private.remove().await;
}

async fn another_tenant_finds_nothing<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let id = new_id();
    fixture.register(&node, id).await.committed();
    let text = id.to_string();
    for tenant in ["other", "ACME", "acme ", "äcme", "acme:ORDER"] {
        let answer = node.resolve::<Order>(tenant, &text).await.expect("an answer");
        assert_eq!(answer.reason, ResolveReason::NotFound, "{tenant:?}");
    }
    assert_eq!(reason(&node, id).await, ResolveReason::HitL1);
    fixture.private.remove().await;
}

/// Returns sixteen bytes as the cache stores them.
fn base64(bytes: [u8; 16]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u128::from_be_bytes(bytes);
    // 128 bits are 21 characters of six bits and one of two, which are its highest.
    let whole = (0..21).map(|at| (bits >> (122 - 6 * at)) & 63);
    let text = whole.chain([(bits & 3) << 4]).map(|six| ALPHABET[six as usize] as char);
    text.chain(['=', '=']).collect()
}
