//! Tests that entries read back as written, for as long as their TTL.

use std::time::Duration;

use semel_ids::shared::{CacheFill, CacheSlot, CorruptEntry, SharedCache};
use semel_redis::RedisCache;
use ulid::Ulid;

use crate::fixture::{HOUR, PLACES, Place, keys, note, read, wrong};

#[tokio::test]
async fn what_is_written_is_read_back_in_order() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(300);
        let there = |at: usize| match at % 3 {
            0 => Some(note(&keys[at], Some(at as u128))),
            1 => Some(note(&keys[at], None)),
            _ => None,
        };
        let notes: Vec<CacheFill> = (0..keys.len()).filter_map(there).collect();
        cache.fill(&notes).await.unwrap();
        let slots = read(&cache, &keys).await.unwrap();
        assert_eq!(slots.len(), keys.len());
        for (at, slot) in slots.into_iter().enumerate() {
            let expected = match at % 3 {
                0 => CacheSlot::Known(Ulid(at as u128)),
                1 => CacheSlot::Absent,
                _ => CacheSlot::Empty,
            };
            assert_eq!(slot, expected, "{variable}: {}", keys[at]);
        }
        assert_eq!(read(&cache, &[]).await.unwrap(), []);
    }
}

#[tokio::test]
async fn entries_are_written_as_bluecone_writes_them() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let id = 0x0156_3df3_6481_d676_4c61_efb9_9302_bd5b;
        cache.fill(&[note("a:ORDER:ord_1", Some(id)), note("a:ORDER:ord_2", None)]).await.unwrap();
        let stored = place.stored("a:ORDER:ord_1").await;
        assert_eq!(stored.as_deref(), Some("AVY982SB1nZMYe+5kwK9Ww=="), "{variable}");
        assert_eq!(place.stored("a:ORDER:ord_2").await.as_deref(), Some("NULL"), "{variable}");
    }
}

#[tokio::test]
async fn entries_live_as_long_as_their_ttl() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let lasting = |key: &str, ttl| CacheFill { ttl, ..note(key, Some(7)) };
        let hour = Duration::from_secs(3_600);
        cache.fill(&[lasting("filled", hour)]).await.unwrap();
        cache.revoked(&["revoked".to_owned()], hour * 2).await.unwrap();
        // Whatever TTL a caller sets: no entry lives for ever, and none is refused.
        cache.fill(&[lasting("none", Duration::ZERO)]).await.unwrap();
        cache.fill(&[lasting("ever", Duration::MAX)]).await.unwrap();
        let remaining = place.ttl("filled").await;
        assert!((3_000_000..=3_600_000).contains(&remaining), "{variable}: {remaining}");
        let remaining = place.ttl("revoked").await;
        assert!((6_600_000..=7_200_000).contains(&remaining), "{variable}: {remaining}");
        assert!(place.ttl("ever").await > 7_200_000, "{variable}");
        assert_ne!(place.ttl("none").await, -1, "{variable}");
    }
}

#[tokio::test]
async fn readers_fill_gaps_and_nothing_else() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(20);
        let all = |internal| keys.iter().map(|key| note(key, internal)).collect::<Vec<_>>();
        cache.fill(&all(Some(1))).await.unwrap();
        cache.fill(&all(None)).await.unwrap();
        cache.fill(&all(Some(2))).await.unwrap();
        let slots = read(&cache, &keys).await.unwrap();
        assert!(slots.iter().all(|slot| *slot == CacheSlot::Known(Ulid(1))), "{variable}");
    }
}

#[tokio::test]
async fn registering_removes_absences_and_nothing_else() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(40);
        let of = |at: usize| at.is_multiple_of(2).then_some(at as u128);
        let notes: Vec<CacheFill> = (0..40).map(|at| note(&keys[at], of(at))).collect();
        cache.fill(&notes).await.unwrap();
        cache.registered(&keys, HOUR).await.unwrap();
        for (at, slot) in read(&cache, &keys).await.unwrap().into_iter().enumerate() {
            let expected = of(at).map_or(CacheSlot::Empty, |id| CacheSlot::Known(Ulid(id)));
            assert_eq!(slot, expected, "{variable}: {}", keys[at]);
        }
    }
}

#[tokio::test]
async fn revoking_overwrites_any_entry() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(40);
        let there: Vec<CacheFill> = keys[..20].iter().map(|key| note(key, Some(1))).collect();
        cache.fill(&there).await.unwrap();
        place.put(&keys[39], b"damaged").await;
        cache.revoked(&keys, Duration::from_secs(60)).await.unwrap();
        cache.fill(&there).await.unwrap();
        let slots = read(&cache, &keys).await.unwrap();
        assert_eq!(slots, vec![CacheSlot::Absent; 40], "{variable}");
    }
}

#[tokio::test]
async fn entries_that_cannot_be_read_are_damaged_until_they_are_cleared() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let unreadable: [&[u8]; 6] =
            [b"", b"null", b"\xff\xfe", b"AVY982SB1nZMYe+5kwK9Ww", &[b'A'; 24], &[b'='; 24]];
        let keys = keys(6);
        for (key, value) in keys.iter().zip(unreadable) {
            place.put(key, value).await;
        }
        let damaged = vec![CacheSlot::Damaged; keys.len()];
        assert_eq!(read(&cache, &keys).await.unwrap(), damaged, "{variable}");
        // A reader cannot overwrite it, so it would stay damaged until its TTL ends.
        let notes: Vec<CacheFill> = keys.iter().map(|key| note(key, Some(1))).collect();
        cache.fill(&notes).await.unwrap();
        assert_eq!(read(&cache, &keys).await.unwrap(), damaged, "{variable}");
        cache.clear(&wrong(&keys)).await.unwrap();
        assert_eq!(read(&cache, &keys).await.unwrap(), vec![CacheSlot::Empty; 6], "{variable}");
    }
}

#[tokio::test]
async fn clearing_leaves_what_can_be_read() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(40);
        let ids = |at: usize| Some(u128::MAX / 41 * at as u128);
        let notes: Vec<CacheFill> =
            keys.iter().enumerate().map(|(at, key)| note(key, ids(at))).collect();
        cache.fill(&notes).await.unwrap();
        cache.revoked(&keys[..1], Duration::from_secs(60)).await.unwrap();
        let before = read(&cache, &keys).await.unwrap();
        cache.clear(&wrong(&keys)).await.unwrap();
        assert_eq!(read(&cache, &keys).await.unwrap(), before, "{variable}");
        assert!(!before.contains(&CacheSlot::Empty) && !before.contains(&CacheSlot::Damaged));
    }
}

#[tokio::test]
async fn a_late_invalidation_leaves_a_revocation() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(2);
        let absence = CacheFill { ttl: Duration::from_secs(30), ..note(&keys[0], None) };
        cache.fill(&[absence]).await.unwrap();
        cache.revoked(&keys[1..], HOUR).await.unwrap();
        cache.registered(&keys, Duration::from_secs(30)).await.unwrap();
        assert_eq!(
            read(&cache, &keys).await.unwrap(),
            [CacheSlot::Empty, CacheSlot::Absent],
            "{variable}"
        );
    }
}

#[tokio::test]
async fn repairing_removes_any_entry() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(4);
        cache.fill(&[note(&keys[0], Some(1)), note(&keys[1], None)]).await.unwrap();
        cache.revoked(&keys[2..3], HOUR).await.unwrap();
        let stays = note("acme:ORDER:stays", Some(2));
        cache.fill(std::slice::from_ref(&stays)).await.unwrap();
        cache.repaired(&keys).await.unwrap();
        assert_eq!(read(&cache, &keys).await.unwrap(), [CacheSlot::Empty; 4], "{variable}");
        let left = read(&cache, &[stays.key]).await.unwrap();
        assert_eq!(left, [CacheSlot::Known(Ulid(2))], "{variable}");
    }
}

#[tokio::test]
async fn a_revocation_is_made_to_last_longer_and_never_shorter() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(1);
        cache.revoked(&keys, HOUR / 2).await.unwrap();
        cache.revoked(&keys, HOUR).await.unwrap();
        cache.revoked(&keys, HOUR / 2).await.unwrap();
        let remaining = place.ttl(&keys[0]).await;
        assert!((3_000_000..=3_600_000).contains(&remaining), "{variable}: {remaining}");
    }
}

#[tokio::test]
async fn a_wrong_entry_is_cleared_and_not_its_successor() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(2);
        cache.fill(&[note(&keys[0], Some(1)), note(&keys[1], Some(2))]).await.unwrap();
        let lies = keys.iter().map(|key| CorruptEntry { key: key.clone(), value: Some(Ulid(1)) });
        cache.clear(&lies.collect::<Vec<_>>()).await.unwrap();
        let left = [CacheSlot::Empty, CacheSlot::Known(Ulid(2))];
        assert_eq!(read(&cache, &keys).await.unwrap(), left, "{variable}");
    }
}

#[tokio::test]
async fn what_is_no_text_at_all_can_be_cleared_too() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let keys = keys(1);
        let _: i64 = place.raw(redis::cmd("RPUSH").arg(place.name(&keys[0])).arg("x")).await;
        assert_ne!(read(&cache, &keys).await.unwrap(), [CacheSlot::Absent], "{variable}");
        cache.clear(&wrong(&keys)).await.unwrap();
        cache.fill(&[note(&keys[0], Some(3))]).await.unwrap();
        assert_eq!(read(&cache, &keys).await.unwrap(), [CacheSlot::Known(Ulid(3))], "{variable}");
    }
}

#[tokio::test]
async fn caches_of_different_prefixes_never_meet() {
    for variable in PLACES {
        let (one, other) = (Place::of(variable), Place::of(variable));
        let keys = keys(1);
        one.cache().fill(&[note(&keys[0], Some(1))]).await.unwrap();
        assert_eq!(read(&other.cache(), &keys).await.unwrap(), [CacheSlot::Empty], "{variable}");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_before_connecting() {
    let open = |builder: semel_redis::cache::CacheBuilder, url| builder.open(url).map(drop);
    let url = "redis://127.0.0.1:1";
    assert!(open(RedisCache::builder(), url).is_ok());
    assert!(open(RedisCache::builder(), "http://somewhere").is_err());
    assert!(open(RedisCache::builder().prefix(""), url).is_err());
    assert!(open(RedisCache::builder().timeout(Duration::ZERO), url).is_err());
}
