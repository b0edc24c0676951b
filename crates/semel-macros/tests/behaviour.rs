//! wip
use semel::store::memory::MemoryStore;
use semel::{Execution, Executor, Store};
use semel_macros::idempotent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Order {
    id: u32,
    sku: String,
}
#[derive(Debug)]
struct OrderError(String);
impl std::fmt::Display for OrderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl From<std::num::ParseIntError> for OrderError {
    fn from(e: std::num::ParseIntError) -> Self {
        OrderError(e.to_string())
    }
}
struct CreateOrder {
    key: String,
    sku: String,
    cents: u64,
    user: String,
}

struct Shop<S: Store> {
    executor: Executor<S>,
    runs: Arc<AtomicU32>,
}
impl<S: Store> Clone for Shop<S> {
    fn clone(&self) -> Self {
        Shop { executor: self.executor.clone(), runs: Arc::clone(&self.runs) }
    }
}

impl<S: Store> Shop<S> {
    /// Creates.
    #[idempotent(operation = "CREATE_ORDER", executor = self.executor, tenant = tenant, key = request.key, principal = request.user, fields(request.sku, amount = request.cents), context = claim, wait = "2s", keep = "PT24H", max_attempts = 3)]
    #[tracing::instrument(skip_all)]
    async fn create(
        &self,
        tenant: &str,
        mut request: CreateOrder,
    ) -> Result<Execution<Order>, semel::Error<OrderError>> {
        let id = self.runs.fetch_add(1, Ordering::SeqCst);
        request.sku.push('!');
        let _n: u32 = "7".parse()?;
        let _ = format!("{} {}", self.runs.load(Ordering::SeqCst), claim.fence());
        Ok(Order { id, sku: request.sku })
    }
    #[idempotent(operation = "VALUE", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn value(self: Arc<Self>, key: &str) -> Result<u32, semel::Error<OrderError>> {
        Ok(self.runs.fetch_add(1, Ordering::SeqCst))
    }
}
#[tokio::test]
async fn works() {
    let shop = Shop { executor: Executor::new(MemoryStore::new()), runs: Arc::default() };
    let r = || CreateOrder { key: "k".into(), sku: "A".into(), cents: 5, user: "u".into() };
    let one = shop.create("t", r()).await.unwrap();
    let two = shop.create("t", r()).await.unwrap();
    assert!(two.replayed());
    assert_eq!(one.value(), two.value());
    let shop = Arc::new(shop);
    assert_eq!(Arc::clone(&shop).value("x").await.unwrap(), 1);
    assert_eq!(Arc::clone(&shop).value("x").await.unwrap(), 1);
}
