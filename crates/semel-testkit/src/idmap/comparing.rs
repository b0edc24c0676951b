//! Random histories run on a map and on the map in memory, which is the reference.

use semel_ids::map::memory::MemoryMap;
use semel_ids::map::{Binding, IdMap, MapKey};

use super::IdMapFixture;
use super::shorthand::*;

/// Returns bindings many of which conflict with each other.
fn pool() -> Vec<Binding> {
    let mut pool = Vec::new();
    for tenant in ["a", "A", "a "] {
        let (one, two) = ambiguous(tenant);
        pool.extend([renamed(&one), renamed(&two), one, two]);
        for number in 0..3 {
            let order = order_of(tenant, number);
            pool.extend([renamed(&order), order]);
        }
    }
    pool.extend((0..3).map(payment));
    pool
}

/// Returns up to five bindings drawn from the pool, possibly with repeats.
fn some(random: &mut fastrand::Rng, pool: &[Binding]) -> Vec<Binding> {
    (0..random.usize(0..6)).map(|_| pool[random.usize(..pool.len())].clone()).collect()
}

/// Applies one random operation to a map and returns its result as text.
async fn step<M: IdMap>(map: &M, seed: u64, pool: &[Binding]) -> String {
    let random = &mut fastrand::Rng::with_seed(seed);
    let one = &pool[random.usize(..pool.len())];
    match random.u8(0..10) {
        0..=3 => format!("{:?}", map.insert_many(&some(random, pool)).await),
        4 => format!("{:?}", map.revoke(one.tenant(), one.kind(), one.public()).await),
        5 => {
            let rows: Vec<MapKey> = some(random, pool).iter().map(key_of).collect();
            format!("{:?}", map.revoke_rows(ORDER, &rows).await)
        }
        6 => format!("{:?}", map.overwrite(&some(random, pool)).await),
        7 => {
            let asked = publics(&some(random, pool));
            let mut found = map.find(one.tenant(), one.kind(), &asked).await.expect("rows");
            found.sort_by(|a, b| a.public.cmp(&b.public));
            format!("{found:?}")
        }
        _ => {
            let tenant = random.bool().then(|| one.tenant());
            let after = random.bool().then(|| key_of(&pool[random.usize(..pool.len())]));
            format!("{:?}", map.list(one.kind(), tenant, after.as_ref(), random.u32(0..9)).await)
        }
    }
}

/// After any random history a map has returned the same results as the map in memory, and has the
/// same rows.
pub async fn random_histories_end_as_in_memory<F: IdMapFixture>(fixture: F) {
    let (map, reference, pool) = (fixture.map().await, MemoryMap::new(), pool());
    let first = fastrand::u64(..);
    for seed in (0..300).map(|n| first.wrapping_add(n)) {
        let (returned, expected) =
            (step(&map, seed, &pool).await, step(&reference, seed, &pool).await);
        assert_eq!(
            returned,
            expected,
            "after {} steps from seed {first}",
            seed.wrapping_sub(first)
        );
    }
    for kind in [ORDER, PAYMENT] {
        assert_eq!(all(&map, kind).await, all(&reference, kind).await, "from seed {first}");
    }
}
