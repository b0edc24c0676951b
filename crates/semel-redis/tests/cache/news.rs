//! News: what one node writes, the others hear.

use semel_ids::shared::{Heard, Shared, Slot};
use ulid::Ulid;

use crate::fixture::{GENEROUS, PLACES, Place, keys, note, said};

#[tokio::test]
async fn what_a_writer_sets_is_news_on_every_node_and_on_its_own() {
    for variable in PLACES {
        let place = Place::of(variable);
        let (one, other) = (place.cache(), place.cache());
        let mut here = one.listen().await.unwrap();
        let mut there = other.listen().await.unwrap();
        let key = "acme:ORDER:ord_1".to_owned();
        one.set(&[note(&key, Some(1))]).await.unwrap();
        for news in [&mut here, &mut there] {
            assert_eq!(said(news.as_mut()).await, Heard::Registered(vec![key.clone()]));
        }
        one.set(&[note(&key, None)]).await.unwrap();
        for news in [&mut here, &mut there] {
            assert_eq!(said(news.as_mut()).await, Heard::Revoked(vec![key.clone()]), "{variable}");
        }
    }
}

#[tokio::test]
async fn whoever_hears_of_an_entry_finds_it_written() {
    for variable in PLACES {
        let place = Place::of(variable);
        let (writer, reader) = (place.cache(), place.cache());
        let mut news = reader.listen().await.unwrap();
        let keys = keys(100);
        let writing = tokio::spawn({
            let notes: Vec<_> = keys.iter().map(|key| note(key, Some(5))).collect();
            async move { writer.set(&notes).await }
        });
        let mut heard = Vec::new();
        while heard.len() < keys.len() {
            let Heard::Registered(some) = said(news.as_mut()).await else {
                panic!("all are there")
            };
            let slots = reader.get(&some).await.unwrap();
            assert!(slots.iter().all(|slot| *slot == Slot::Known(Ulid(5))), "{variable}");
            heard.extend(some);
        }
        writing.await.unwrap().unwrap();
        heard.sort_unstable();
        assert_eq!(heard, keys, "{variable}: each of them once");
    }
}

#[tokio::test]
async fn readers_and_cleaners_make_no_news() {
    for variable in PLACES {
        let place = Place::of(variable);
        let cache = place.cache();
        let mut news = cache.listen().await.unwrap();
        let keys = keys(3);
        place.put(&keys[0], b"damaged").await;
        cache.clear(&keys).await.unwrap();
        cache.fill(&[note(&keys[0], Some(1)), note(&keys[1], None)]).await.unwrap();
        cache.set(&[note(&keys[2], None)]).await.unwrap();
        assert_eq!(said(news.as_mut()).await, Heard::Revoked(vec![keys[2].clone()]), "{variable}");
    }
}

#[tokio::test]
async fn a_quiet_line_has_a_pulse() {
    for variable in PLACES {
        let mut news = Place::of(variable).cache().listen().await.unwrap();
        for _ in 0..3 {
            let next = tokio::time::timeout(GENEROUS, news.next()).await;
            assert_eq!(next.expect("a pulse").unwrap(), Heard::Pulse, "{variable}");
        }
    }
}

#[tokio::test]
async fn messages_that_cannot_be_read_are_counted_and_passed_over() {
    let place = Place::of("SEMEL_TEST_REDIS_URL");
    let cache = place.cache();
    let mut news = cache.listen().await.unwrap();
    let channel = format!("{}news", place.prefix);
    for message in [&b"9+acme:ORDER:ord_1"[..], b"hello", b"1+\xff", b""] {
        let reached: i64 = place.raw(redis::cmd("PUBLISH").arg(&channel).arg(message)).await;
        assert_eq!(reached, 1, "the line is on this channel");
    }
    cache.set(&[note("acme:ORDER:ord_2", Some(1))]).await.unwrap();
    let heard = said(news.as_mut()).await;
    assert_eq!(heard, Heard::Registered(vec!["acme:ORDER:ord_2".to_owned()]));
    assert_eq!(cache.unreadable_news(), 4);
}

#[tokio::test]
async fn a_reader_that_stops_listening_half_way_misses_nothing() {
    let place = Place::of("SEMEL_TEST_REDIS_URL");
    let cache = place.cache();
    let mut news = cache.listen().await.unwrap();
    let keys = keys(20);
    for key in &keys {
        // As a `select!` does it: the future is polled and dropped.
        drop(futures_util::FutureExt::now_or_never(news.next()));
        tokio::task::yield_now().await;
        cache.set(&[note(key, Some(1))]).await.unwrap();
        assert_eq!(said(news.as_mut()).await, Heard::Registered(vec![key.clone()]));
    }
}
