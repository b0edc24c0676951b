//! Tests texts that may encode several ids, because the hiding keys were rotated.

use std::sync::LazyLock;
use std::time::Duration;

use semel_ids::codec::HidingKey;
use semel_ids::{
    Binding, Codec, Generator, IdMap as _, ResolveReason, Resolver, Resource, ResourceType, TypedId,
};
use ulid::Ulid;

use super::nodes::{ACME, TestCache, TestMap, node};

const OLD: [u8; 16] = [1; 16];
const NEW: [u8; 16] = [2; 16];

/// A resource whose hiding key was rotated: the second key of its codec is old.
enum Ticket {}

impl Resource for Ticket {
    const TYPE: ResourceType = ResourceType::new("TICKET", "tic");

    fn codec() -> &'static Codec {
        static ROTATED: LazyLock<Codec> = LazyLock::new(|| {
            Codec::new().hiding_time([HidingKey::new(NEW), HidingKey::new(OLD)]).checksum()
        });
        &ROTATED
    }
}

fn encoded_with(key: [u8; 16], id: Ulid) -> String {
    let codec = Codec::new().hiding_time([HidingKey::new(key)]).checksum();
    codec.encode(Ticket::TYPE.prefix(), id).to_string()
}

fn bound(text: &str, id: Ulid) -> Binding {
    Binding::checked(ACME, Ticket::TYPE, Ticket::codec(), text, id).expect("a valid binding")
}

async fn found(resolver: &Resolver, text: &str) -> (Option<Ulid>, ResolveReason) {
    let answer = resolver.resolve::<Ticket>(ACME, text).await.expect("an answer");
    (answer.internal_id, answer.reason)
}

#[tokio::test(start_paused = true)]
async fn an_id_that_an_old_key_encoded_is_revoked_by_its_internal_id() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    for key in [OLD, NEW] {
        let id = Generator::new().generate().expect("a working clock");
        let text = encoded_with(key, id);
        let inserted = map.rows.insert_many(&[bound(&text, id)]).await;
        assert_eq!(inserted.expect("memory").len(), 1);
        for node in [&one, &two] {
            assert_eq!(found(node, &text).await.0, Some(id));
        }
        let revoked = one.revoke(ACME, TypedId::<Ticket>::new(id)).await.expect("revoked");
        assert!(revoked.was_live && revoked.propagated);
        tokio::time::sleep(Duration::from_millis(1)).await;
        for node in [&one, &two] {
            assert_eq!(found(node, &text).await, (None, ResolveReason::NotFound));
        }
        let again = one.revoke(ACME, TypedId::<Ticket>::new(id)).await.expect("an answer");
        assert!(!again.was_live);
    }
}

#[tokio::test(start_paused = true)]
async fn no_node_keeps_the_wrong_answer_for_a_repaired_id() {
    let (map, shared) = (TestMap::new(), TestCache::new());
    let (one, two) = (node(&map, &shared).await, node(&map, &shared).await);
    let id = Generator::new().generate().expect("a working clock");
    let text = encoded_with(OLD, id);
    // A row with the id that the other key decodes, as a faulty tool might write it.
    let wrong: TypedId<Ticket> = text.parse().expect("an id");
    let inserted = map.rows.insert_many(&[bound(&text, wrong.ulid())]).await;
    assert_eq!(inserted.expect("memory").len(), 1);
    for node in [&one, &two] {
        assert_eq!(found(node, &text).await.0, Some(wrong.ulid()));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(found(node, &text).await, (Some(wrong.ulid()), ResolveReason::HitL1));
    }
    map.overwrite(&[bound(&text, id)]).await.expect("memory");
    one.changed(Ticket::TYPE, ACME, &text, true);
    assert_eq!(
        found(&one, &text).await,
        (Some(id), ResolveReason::HitDb),
        "before other nodes receive the message"
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(found(&two, &text).await.0, Some(id));
    // The shared cache has not kept the wrong id for new nodes.
    assert_eq!(found(&node(&map, &shared).await, &text).await.0, Some(id));
}
