//! Compares random histories of two nodes with a model that records which ids existed when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use semel_ids::resource::Order;
use semel_ids::{CacheSettings, Resolver, TypedId};
use tokio::time::Instant;

use super::nodes::{ACME, TestCache, TestMap, new_id, node};

/// The longest time for which a node without messages may use cached answers.
const WITHOUT_MESSAGES: Duration = Duration::from_secs(10);
/// The time within which the shared cache receives a revocation that it missed, and a node without
/// messages drops answers that it read from the cache before.
const RETRIED: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
enum Step {
    Register {
        id: usize,
        node: usize,
        reported: bool,
    },
    Revoke {
        id: usize,
        node: usize,
    },
    Resolve {
        id: usize,
        node: usize,
    },
    Batch {
        node: usize,
    },
    Sleep {
        millis: u64,
    },
    Cut(bool),
    Down(bool),
    /// Whether the shared cache can be read but refuses writes.
    Full(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (id, node) = (0_usize..4, 0_usize..2);
    prop_oneof![
        2 => (id.clone(), node.clone(), any::<bool>())
            .prop_map(|(id, node, reported)| Step::Register { id, node, reported }),
        1 => (id.clone(), node.clone()).prop_map(|(id, node)| Step::Revoke { id, node }),
        8 => (id, node.clone()).prop_map(|(id, node)| Step::Resolve { id, node }),
        2 => node.prop_map(|node| Step::Batch { node }),
        3 => (0_u64..40_000).prop_map(|millis| Step::Sleep { millis }),
        1 => any::<bool>().prop_map(Step::Cut),
        1 => any::<bool>().prop_map(Step::Down),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

/// Whether an id exists, and since when.
#[derive(Clone, Copy, Debug)]
struct Truth {
    exists: bool,
    since: Instant,
    /// The node that made the change.
    by: usize,
    /// Whether the node published the change, and the shared cache accepted it.
    published: bool,
    /// Whether the subscription of the other node worked, and had for a while.
    received: bool,
}

struct History {
    map: TestMap,
    shared: TestCache,
    nodes: [Resolver; 2],
    ids: [TypedId<Order>; 4],
    truths: [Option<Truth>; 4],
    fresh: [bool; 4],
    /// The time since which the subscriptions have worked.
    connected_since: Instant,
    /// The time since which the shared cache has accepted writes; `None` while it refuses them.
    writable_since: Option<Instant>,
}

impl History {
    async fn new() -> Self {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let nodes = [node(&map, &shared).await, node(&map, &shared).await];
        let ids = [(); 4].map(|()| new_id());
        let (truths, fresh, connected_since) = ([None; 4], [true; 4], Instant::now());
        Self {
            map,
            shared,
            nodes,
            ids,
            truths,
            fresh,
            connected_since,
            writable_since: Some(connected_since),
        }
    }

    fn now_true(&mut self, id: usize, exists: bool, by: usize, published: bool) {
        let published = published && self.writable_since.is_some();
        let received =
            published && !self.shared.is_cut() && self.connected_since.elapsed() > WITHOUT_MESSAGES;
        self.truths[id] = Some(Truth { exists, since: Instant::now(), by, published, received });
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Step::Register { id, node, reported } if self.fresh[id] => {
                self.fresh[id] = false;
                let begun = self.map.register(&self.nodes[node], self.ids[id]).await;
                if reported {
                    begun.committed();
                } else {
                    drop(begun);
                }
                self.now_true(id, true, node, reported);
            }
            // Ids that were never registered are revoked too, and may be registered afterwards.
            Step::Revoke { id, node } => {
                let revoked = self.nodes[node].revoke(ACME, self.ids[id]).await.expect("memory");
                if revoked.was_live {
                    self.now_true(id, false, node, revoked.propagated);
                }
            }
            Step::Register { .. } => {}
            Step::Resolve { id, node } => {
                let text = self.ids[id].to_string();
                let answer = self.nodes[node].resolve::<Order>(ACME, &text).await.expect("memory");
                self.judge(id, node, answer.internal_id.is_some());
            }
            Step::Batch { node } => {
                let texts = self.ids.map(|id| id.to_string());
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let answers =
                    self.nodes[node].resolve_batch::<Order>(ACME, &texts).await.expect("memory");
                for (id, answer) in answers.iter().enumerate() {
                    self.judge(id, node, answer.internal_id.is_some());
                }
            }
            Step::Sleep { millis } => tokio::time::sleep(Duration::from_millis(millis)).await,
            Step::Cut(cut) => {
                self.shared.cut(cut);
                self.connected_since = Instant::now();
            }
            Step::Down(down) => {
                self.shared.down.store(down, Ordering::SeqCst);
                self.update_writable();
            }
            Step::Full(full) => {
                self.shared.full.store(full, Ordering::SeqCst);
                self.update_writable();
            }
        }
        // Messages need a moment to arrive.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    /// Updates the times after the shared cache became writable or not writable.
    fn update_writable(&mut self) {
        self.connected_since = Instant::now();
        let refuses =
            [&self.shared.down, &self.shared.full].map(|flag| flag.load(Ordering::SeqCst));
        self.writable_since = match refuses.contains(&true) {
            true => None,
            false => self.writable_since.or(Some(self.connected_since)),
        };
    }

    /// Asserts that an answer agrees with the model, or did so within the allowed delay.
    fn judge(&self, id: usize, node: usize, found: bool) {
        let Some(truth) = self.truths[id] else {
            return assert!(!found, "an id that was never registered is found");
        };
        if found == truth.exists {
            return;
        }
        let cache = CacheSettings::default();
        let bound = match truth {
            // The node that made the change sees it at once, published or not: after a registration
            // it ignores absences, and after a revocation it ignores earlier entries.
            Truth { by, .. } if by == node => Duration::ZERO,
            Truth { received: true, .. } => Duration::ZERO,
            Truth { published: true, .. } => WITHOUT_MESSAGES,
            // Without a message, an absence lasts as long as caches keep it.
            Truth { exists: true, .. } => cache.absence_bound(),
            // Without a message, so does a presence, until the message is retried.
            Truth { exists: false, .. }
                if self.writable_since.is_some_and(|since| since.elapsed() > RETRIED) =>
            {
                WITHOUT_MESSAGES
            }
            Truth { exists: false, .. } => cache.l1_ttl + cache.l2_ttl,
        };
        let stale = truth.since.elapsed();
        assert!(stale < bound, "{truth:?} is not visible to node {node} after {stale:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_agree_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut history = History::new().await;
            for step in &steps {
                history.take(step).await;
            }
        });
    }
}
