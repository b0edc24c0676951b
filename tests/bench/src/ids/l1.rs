//! L1 hits beside a bare cache of the same kind and settings.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use semel_ids::map::memory::MemoryMap;
use semel_ids::resource::Order;
use semel_ids::{IdMap as _, ResolveReason, Resolver};
use ulid::Ulid;

use super::{Ids, TENANT, label};
use crate::BoxError;
use crate::arguments::Arguments;
use crate::contest::{Reference, contest};
use crate::report::Report;
use semel_bench::turns::{AnyContender, Contender};

/// The number of hits per operation: reading the clock costs as much as one hit.
const HITS: u64 = 100;

/// A resolver with all ids in L1.
pub(super) struct Warm {
    pub(super) resolver: Resolver,
    pub(super) ids: Ids,
}

impl Warm {
    pub(super) async fn new() -> Result<Self, BoxError> {
        let (ids, map) = (Ids::new()?, MemoryMap::new());
        let resolver = Resolver::builder(map.clone()).build();
        for bindings in ids.bindings()?.chunks(100) {
            map.insert_many(bindings).await?;
        }
        for text in &ids.texts {
            resolver.resolve::<Order>(TENANT, text).await?;
        }
        Ok(Self { resolver, ids })
    }

    pub(super) async fn hit(&self, number: u64) -> Result<(), BoxError> {
        let at = self.ids.at(number);
        let answer = self.resolver.resolve::<Order>(TENANT, &self.ids.texts[at]).await?;
        let known = answer.internal_id == Some(self.ids.ids[at].ulid());
        if known && answer.reason == ResolveReason::HitL1 {
            return Ok(());
        }
        Err(format!("a hit was {}", answer.reason.name()).into())
    }
}

/// The cache library that the resolver uses, with the key type that such a cache has.
pub(super) struct Bare {
    cache: Cache<String, Ulid>,
    entries: Vec<(String, Ulid)>,
}

impl Bare {
    pub(super) fn new(ids: &Ids) -> Self {
        let cache = Cache::builder();
        let cache = cache.max_capacity(100_000).time_to_live(Duration::from_secs(600)).build();
        let key = |text: &String| format!("{TENANT}:ORDER:{text}");
        let entries = ids.texts.iter().zip(&ids.ids).map(|(text, id)| (key(text), id.ulid()));
        let entries: Vec<_> = entries.collect();
        for (key, id) in &entries {
            cache.insert(key.clone(), *id);
        }
        Self { cache, entries }
    }

    pub(super) fn hit(&self, number: u64) -> Result<(), BoxError> {
        let at = usize::try_from(number).unwrap_or(0) % self.entries.len();
        let (key, id) = &self.entries[at];
        let known = self.cache.get(key.as_str()) == Some(*id);
        known.then_some(()).ok_or_else(|| "a bare hit missed".into())
    }
}

impl Contender for Warm {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        for hit in 0..HITS {
            self.hit(number.wrapping_mul(HITS) + hit).await?;
        }
        Ok(())
    }
}

impl Contender for Bare {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        for hit in 0..HITS {
            self.hit(number.wrapping_mul(HITS) + hit)?;
        }
        Ok(())
    }
}

pub(super) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let warm = Warm::new().await?;
    let bare = Bare::new(&warm.ids);
    let (warm, bare): (Arc<dyn AnyContender>, Arc<dyn AnyContender>) =
        (Arc::new(warm), Arc::new(bare));
    for tasks in [1, 64] {
        let name = "bare moka get (100 a time)".to_owned();
        let reference = Reference { name, contender: Arc::clone(&bare), target: None };
        let label = label("resolve-l1 x100", "", tasks);
        contest(report, label, Arc::clone(&warm), vec![reference], arguments.pace).await?;
    }
    Ok(())
}
