//! Texts that may stand for several ids: their hiding keys were changed.

use std::sync::LazyLock;
use std::time::Duration;

use semel_ids::codec::HidingKey;
use semel_ids::{
    Binding, Codec, Generator, IdMap as _, ResolveReason, Resolver, Resource, ResourceType, TypedId,
};
use ulid::Ulid;

use super::nodes::{ACME, Hub, Spy, node};

const OLD: [u8; 16] = [1; 16];
const NEW: [u8; 16] = [2; 16];

/// Its key was changed: the second one is old.
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

fn written_under(key: [u8; 16], id: Ulid) -> String {
    let codec = Codec::new().hiding_time([HidingKey::new(key)]).checksum();
    codec.encode(Ticket::TYPE.prefix(), id).to_string()
}

fn bound(text: &str, id: Ulid) -> Binding {
    Binding::checked(ACME, Ticket::TYPE, Ticket::codec(), text, id).expect("it may stand for it")
}

async fn found(resolver: &Resolver, text: &str) -> (Option<Ulid>, ResolveReason) {
    let answer = resolver.resolve::<Ticket>(ACME, text).await.expect("an answer");
    (answer.internal_id, answer.reason)
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_given_out_under_an_old_key_is_revoked_by_what_it_stands_for() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    for key in [OLD, NEW] {
        let id = Generator::new().generate().expect("the clock goes on");
        let text = written_under(key, id);
        let planted = map.rows.insert_many(&[bound(&text, id)]).await;
        assert_eq!(planted.expect("memory").len(), 1);
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
async fn no_node_keeps_the_wrong_entry_of_a_repaired_id() {
    let (map, hub) = (Spy::new(), Hub::new());
    let (one, two) = (node(&map, &hub).await, node(&map, &hub).await);
    let id = Generator::new().generate().expect("the clock goes on");
    let text = written_under(OLD, id);
    // Read under the other key, which somebody's tool took for the right one.
    let wrong: TypedId<Ticket> = text.parse().expect("an id");
    let planted = map.rows.insert_many(&[bound(&text, wrong.ulid())]).await;
    assert_eq!(planted.expect("memory").len(), 1);
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
        "before anybody was told"
    );
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(found(&two, &text).await.0, Some(id));
    // Nor has the shared cache kept it for those who come later.
    assert_eq!(found(&node(&map, &hub).await, &text).await.0, Some(id));
}
