//! Random histories of two nodes beside a plain list of what was true when.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use semel_ids::resource::Order;
use semel_ids::{CacheSettings, Resolver, TypedId};
use tokio::time::Instant;

use super::nodes::{ACME, Hub, Spy, new_id, node};

/// How long a node that hears nothing may go on with what it remembers.
const DEAF: Duration = Duration::from_secs(10);
/// Within which the shared cache has heard of a revocation that it missed, and a node that hears nothing
/// has forgotten what it read there before.
const TOLD: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
enum Step {
    Register {
        id: usize,
        node: usize,
        told: bool,
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
    /// Whether it is read and takes nothing.
    Full(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let (id, node) = (0_usize..4, 0_usize..2);
    prop_oneof![
        2 => (id.clone(), node.clone(), any::<bool>())
            .prop_map(|(id, node, told)| Step::Register { id, node, told }),
        1 => (id.clone(), node.clone()).prop_map(|(id, node)| Step::Revoke { id, node }),
        8 => (id, node.clone()).prop_map(|(id, node)| Step::Resolve { id, node }),
        2 => node.prop_map(|node| Step::Batch { node }),
        3 => (0_u64..40_000).prop_map(|millis| Step::Sleep { millis }),
        1 => any::<bool>().prop_map(Step::Cut),
        1 => any::<bool>().prop_map(Step::Down),
        1 => any::<bool>().prop_map(Step::Full),
    ]
}

/// What is true of an id, since when.
#[derive(Clone, Copy, Debug)]
struct Truth {
    exists: bool,
    since: Instant,
    /// The node that did it.
    by: usize,
    /// Whether that node said so, and the shared cache took it.
    said: bool,
    /// Whether the line to the other node worked, and had for a while.
    heard: bool,
}

struct History {
    map: Spy,
    hub: Hub,
    nodes: [Resolver; 2],
    ids: [TypedId<Order>; 4],
    truths: [Option<Truth>; 4],
    fresh: [bool; 4],
    /// Since when the line has worked.
    whole: Instant,
    /// Since when the shared cache takes words; `None` while it does not.
    up: Option<Instant>,
}

impl History {
    async fn new() -> Self {
        let (map, hub) = (Spy::new(), Hub::new());
        let nodes = [node(&map, &hub).await, node(&map, &hub).await];
        let ids = [(); 4].map(|()| new_id());
        let (truths, fresh, whole) = ([None; 4], [true; 4], Instant::now());
        Self { map, hub, nodes, ids, truths, fresh, whole, up: Some(whole) }
    }

    fn now_true(&mut self, id: usize, exists: bool, by: usize, said: bool) {
        let said = said && self.up.is_some();
        let heard = said && !self.hub.is_cut() && self.whole.elapsed() > DEAF;
        self.truths[id] = Some(Truth { exists, since: Instant::now(), by, said, heard });
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Step::Register { id, node, told } if self.fresh[id] => {
                self.fresh[id] = false;
                let begun = self.map.register(&self.nodes[node], self.ids[id]).await;
                if told {
                    begun.committed();
                } else {
                    drop(begun);
                }
                self.now_true(id, true, node, told);
            }
            // Those that were never registered too, and may be afterwards.
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
                self.hub.cut(cut);
                self.whole = Instant::now();
            }
            Step::Down(down) => {
                self.hub.down.store(down, Ordering::SeqCst);
                self.take_words();
            }
            Step::Full(full) => {
                self.hub.full.store(full, Ordering::SeqCst);
                self.take_words();
            }
        }
        // Messages are on their way for a moment.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }

    /// Whether the shared cache takes words has changed.
    fn take_words(&mut self) {
        self.whole = Instant::now();
        let away = [&self.hub.down, &self.hub.full].map(|away| away.load(Ordering::SeqCst));
        self.up = match away.contains(&true) {
            true => None,
            false => self.up.or(Some(self.whole)),
        };
    }

    /// An answer is the truth, or was within the bound.
    fn judge(&self, id: usize, node: usize, found: bool) {
        let Some(truth) = self.truths[id] else {
            return assert!(!found, "an id that never was is found");
        };
        if found == truth.exists {
            return;
        }
        let cache = CacheSettings::default();
        let bound = match truth {
            // Whoever did it knows, told or not: who registered an id doubts every absence, and who
            // revoked one believes no entry from before.
            Truth { by, .. } if by == node => Duration::ZERO,
            Truth { heard: true, .. } => Duration::ZERO,
            Truth { said: true, .. } => DEAF,
            // Without a word an absence lasts as long as caches keep it.
            Truth { exists: true, .. } => cache.absence_bound(),
            // So does a presence, until the word comes after all.
            Truth { exists: false, .. } if self.up.is_some_and(|up| up.elapsed() > TOLD) => DEAF,
            Truth { exists: false, .. } => cache.l1_ttl + cache.l2_ttl,
        };
        let stale = truth.since.elapsed();
        assert!(stale < bound, "{truth:?} is not known to node {node} after {stale:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_agree_with_what_was_true(steps in prop::collection::vec(step(), 1..60)) {
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
