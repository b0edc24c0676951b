//! Tests invalidations: every node receives what another registers and revokes.

use std::time::Duration;

use semel_ids::shared::{CacheSlot, Invalidation, SharedCache};

const MINUTE: Duration = Duration::from_secs(60);

use crate::fixture::{GENEROUS, HOUR, PLACES, Place, keys, next_invalidation, note, read, wrong};

#[tokio::test]
async fn a_writers_invalidations_reach_every_node_and_its_own() {
    for variable in PLACES {
        let place = Place::of(variable);
        let (one, other) = (place.cache(), place.cache());
        let mut here = one.listen().await.unwrap();
        let mut there = other.listen().await.unwrap();
        let keys = keys(1);
        one.registered(&keys, HOUR).await.unwrap();
        for messages in [&mut here, &mut there] {
            assert_eq!(
                next_invalidation(messages.as_mut()).await,
                Invalidation::Registered(keys.clone()),
                "{variable}"
            );
        }
        one.revoked(&keys, MINUTE).await.unwrap();
        for messages in [&mut here, &mut there] {
            assert_eq!(
                next_invalidation(messages.as_mut()).await,
                Invalidation::Revoked(keys.clone()),
                "{variable}"
            );
        }
        one.repaired(&keys).await.unwrap();
        for messages in [&mut here, &mut there] {
            assert_eq!(
                next_invalidation(messages.as_mut()).await,
                Invalidation::Repaired(keys.clone()),
                "{variable}"
            );
        }
    }
}

#[tokio::test]
async fn a_node_that_receives_an_invalidation_finds_the_cache_changed() {
    for variable in PLACES {
        let place = Place::of(variable);
        let (writer, reader) = (place.cache(), place.cache());
        let mut messages = reader.listen().await.unwrap();
        let keys = keys(100);
        let absent: Vec<_> = keys.iter().map(|key| note(key, None)).collect();
        writer.fill(&absent).await.unwrap();
        let writing = tokio::spawn({
            let keys = keys.clone();
            async move {
                writer.registered(&keys, HOUR).await.unwrap();
                writer.revoked(&keys, MINUTE).await.unwrap();
            }
        });
        let mut heard = (Vec::new(), Vec::new());
        while heard.1.len() < keys.len() {
            match next_invalidation(messages.as_mut()).await {
                Invalidation::Registered(some) => heard.0.extend(some),
                Invalidation::Revoked(some) => {
                    let slots = read(&reader, &some).await.unwrap();
                    assert!(slots.iter().all(|slot| *slot == CacheSlot::Absent), "{variable}");
                    heard.1.extend(some);
                }
                Invalidation::Repaired(_) | Invalidation::Heartbeat => {}
            }
        }
        writing.await.unwrap();
        heard.0.sort_unstable();
        heard.1.sort_unstable();
        assert_eq!(heard, (keys.clone(), keys), "{variable}: each of them once");
    }
}

#[tokio::test]
async fn reading_and_clearing_send_no_invalidations() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let mut messages = cache.listen().await.unwrap();
        let keys = keys(3);
        place.put(&keys[0], b"damaged").await;
        cache.clear(&wrong(&keys)).await.unwrap();
        cache.fill(&[note(&keys[0], Some(1)), note(&keys[1], None)]).await.unwrap();
        cache.revoked(&keys[2..], MINUTE).await.unwrap();
        assert_eq!(
            next_invalidation(messages.as_mut()).await,
            Invalidation::Revoked(vec![keys[2].clone()]),
            "{variable}"
        );
    }
}

#[tokio::test]
async fn a_quiet_subscription_has_heartbeats() {
    for variable in PLACES {
        let mut messages = Place::of(variable).cache().listen().await.unwrap();
        for _ in 0..3 {
            let next = tokio::time::timeout(GENEROUS, messages.next()).await;
            assert_eq!(next.expect("a pulse").unwrap(), Invalidation::Heartbeat, "{variable}");
        }
    }
}

#[tokio::test]
async fn messages_that_cannot_be_read_are_counted_and_skipped() {
    let place = Place::of("SEMEL_TEST_REDIS_URL");
    let cache = place.cache();
    let mut messages = cache.listen().await.unwrap();
    let channel = format!("{}news", place.prefix);
    for message in [&b"9+acme:ORDER:ord_1"[..], b"hello", b"1+\xff", b""] {
        let reached: i64 = place.raw(redis::cmd("PUBLISH").arg(&channel).arg(message)).await;
        assert_eq!(reached, 1, "the line is on this channel");
    }
    cache.registered(&keys(1), HOUR).await.unwrap();
    assert_eq!(next_invalidation(messages.as_mut()).await, Invalidation::Registered(keys(1)));
    assert_eq!(cache.unreadable_invalidations(), 4);
}

#[tokio::test]
async fn a_reader_that_stops_listening_half_way_misses_nothing() {
    let place = Place::of("SEMEL_TEST_REDIS_URL");
    let cache = place.cache();
    let mut messages = cache.listen().await.unwrap();
    let keys = keys(20);
    for key in &keys {
        // As in a `select!`: the future is polled and dropped.
        drop(futures_util::FutureExt::now_or_never(messages.next()));
        tokio::task::yield_now().await;
        cache.registered(std::slice::from_ref(key), HOUR).await.unwrap();
        assert_eq!(
            next_invalidation(messages.as_mut()).await,
            Invalidation::Registered(vec![key.clone()])
        );
    }
}
