//! Benchmarks of ids: generating, encoding and decoding beside the `ulid` crate; resolving beside a
//! bare cache, a bare Redis and a bare query.

mod instructions;
mod l1;
mod text;
mod uncached;

use semel_ids::resource::Order;
use semel_ids::{Binding, Generator, TypedId};

use super::BoxError;
use super::arguments::{Arguments, StoreName};
use super::report::{Report, RowLabel};

pub(crate) use instructions::count;

const TENANT: &str = "bench";
/// The number of ids that are looked up in turn.
const IDS: usize = 10_000;
/// The number of ids in a batch.
const BATCH: usize = 200;

/// Ids and their texts.
struct Ids {
    ids: Vec<TypedId<Order>>,
    texts: Vec<String>,
}

impl Ids {
    fn new() -> Result<Self, BoxError> {
        let generator = Generator::new();
        let ids: Result<Vec<_>, _> =
            (0..IDS).map(|_| generator.generate().map(TypedId::<Order>::new)).collect();
        let ids = ids?;
        let texts = ids.iter().map(ToString::to_string).collect();
        Ok(Self { ids, texts })
    }

    fn bindings(&self) -> Result<Vec<Binding>, BoxError> {
        let bindings: Result<Vec<_>, _> =
            self.ids.iter().map(|id| Binding::of(TENANT, *id)).collect();
        Ok(bindings?)
    }

    /// Returns the index of the id for this operation number.
    fn at(&self, number: u64) -> usize {
        usize::try_from(number).unwrap_or(0) % self.ids.len()
    }

    /// Returns [`BATCH`] texts for this operation number.
    fn batch(&self, number: u64) -> &[String] {
        let batches = self.texts.len() / BATCH;
        let at = usize::try_from(number).unwrap_or(0) % batches;
        &self.texts[at * BATCH..(at + 1) * BATCH]
    }
}

fn label(bench: &'static str, store: &'static str, concurrency: usize) -> RowLabel {
    RowLabel { bench, store, concurrency }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    eprintln!("ids, text …");
    text::bench(arguments, report)?;
    eprintln!("ids, cache …");
    instructions::bench(report)?;
    l1::bench(arguments, report).await?;
    for which in &arguments.stores {
        eprintln!("ids, {} …", which.name());
        let done = match which {
            StoreName::Memory => Ok(()),
            StoreName::Sqlite => uncached::sqlite(arguments, report).await,
            StoreName::Postgres => uncached::postgres(arguments, report).await,
            StoreName::MySql => uncached::mysql(arguments, report).await,
            StoreName::Redis => uncached::redis(arguments, report).await,
        };
        done.map_err(|error| format!("{}: {error}", which.name()))?;
    }
    Ok(())
}
