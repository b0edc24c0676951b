//! Ids: making, writing and reading them beside the `ulid` crate; resolving them beside a bare cache,
//! a bare Redis and a bare query.

mod far;
mod instructions;
mod near;
mod text;

use semel_ids::resource::Order;
use semel_ids::{Binding, Generator, TypedId};

use super::Trouble;
use super::arguments::{Arguments, Which};
use super::report::{Report, Subject};

pub(crate) use instructions::count;

const TENANT: &str = "bench";
/// Ids that are looked up in turn.
const IDS: usize = 10_000;
/// Ids in a batch.
const BATCH: usize = 200;

/// Ids, and their texts.
struct Ids {
    ids: Vec<TypedId<Order>>,
    texts: Vec<String>,
}

impl Ids {
    fn new() -> Result<Self, Trouble> {
        let generator = Generator::new();
        let ids: Result<Vec<_>, _> =
            (0..IDS).map(|_| generator.generate().map(TypedId::<Order>::new)).collect();
        let ids = ids?;
        let texts = ids.iter().map(ToString::to_string).collect();
        Ok(Self { ids, texts })
    }

    fn bindings(&self) -> Result<Vec<Binding>, Trouble> {
        let bindings: Result<Vec<_>, _> =
            self.ids.iter().map(|id| Binding::of(TENANT, *id)).collect();
        Ok(bindings?)
    }

    /// The one whose turn it is.
    fn at(&self, number: u64) -> usize {
        usize::try_from(number).unwrap_or(0) % self.ids.len()
    }

    /// A run of [`BATCH`] of them.
    fn batch(&self, number: u64) -> &[String] {
        let batches = self.texts.len() / BATCH;
        let at = usize::try_from(number).unwrap_or(0) % batches;
        &self.texts[at * BATCH..(at + 1) * BATCH]
    }
}

fn subject(bench: &'static str, store: &'static str, concurrency: usize) -> Subject {
    Subject { bench, store, concurrency }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), Trouble> {
    eprintln!("ids, text …");
    text::bench(arguments, report)?;
    eprintln!("ids, cache …");
    instructions::bench(report)?;
    near::bench(arguments, report).await?;
    for which in &arguments.stores {
        eprintln!("ids, {} …", which.name());
        let done = match which {
            Which::Memory => Ok(()),
            Which::Sqlite => far::sqlite(arguments, report).await,
            Which::Postgres => far::postgres(arguments, report).await,
            Which::MySql => far::mysql(arguments, report).await,
            Which::Redis => far::redis(arguments, report).await,
        };
        done.map_err(|trouble| format!("{}: {trouble}", which.name()))?;
    }
    Ok(())
}
