//! Tests functions of every form: generic, with borrowed or owned arguments, in traits, and with
//! other attributes.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::OnceLock;

use semel::store::memory::MemoryStore;
use semel::{Error, Execution, Executor, Store};
use semel_macros::idempotent;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{OutOfStock, Shop};

#[idempotent(operation = "ECHO", executor = executor, tenant = "acme", key = key, fields(value))]
async fn echo<'a, S, T>(
    executor: &'a Executor<S>,
    key: &'a str,
    value: T,
    note: impl Display + Send + 'static,
) -> Result<Execution<(T, String)>, Error<OutOfStock>>
where
    S: Store,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    Ok((value, note.to_string()))
}

#[tokio::test]
async fn a_generic_function_with_lifetimes_and_hidden_types() {
    let executor = Executor::new(MemoryStore::new());
    let first = echo(&executor, "k-1", vec![1_u8, 2], "note").await.expect("runs");
    assert_eq!(first.value(), Some(&(vec![1, 2], "note".to_owned())));
    let again = echo(&executor, "k-1", vec![1_u8, 2], 7).await.expect("replays");
    assert_eq!(again.value(), first.value());
    assert!(again.replayed());
    let other = echo(&executor, "k-2", "text".to_owned(), 7).await.expect("runs");
    assert_eq!(other.into_value(), Some(("text".to_owned(), "7".to_owned())));
}

impl Shop {
    #[idempotent(operation = "BY_ARC", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn by_arc(self: Arc<Self>, key: String) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }

    #[idempotent(operation = "BY_REF", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn by_reference_to_arc(self: &Arc<Self>, key: &str) -> Result<u32, Error<OutOfStock>> {
        let me: Arc<Self> = Arc::clone(self);
        Ok(me.run())
    }

    #[idempotent(operation = "BY_VALUE", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn by_value(mut self, key: &str) -> Result<u32, Error<OutOfStock>> {
        self.runs = Arc::clone(&self.runs);
        Ok(self.run())
    }

    #[idempotent(operation = "NESTED", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn nested(&self, key: &str) -> Result<String, Error<OutOfStock>> {
        struct Tag(u32);
        impl Tag {
            fn shown(&self) -> String {
                format!("tag {}", self.0)
            }
        }
        let run = || self.run();
        let tag = Tag(run()).shown();
        let Self { runs, .. } = self;
        assert_eq!(Arc::as_ptr(runs), Arc::as_ptr(&self.runs), "{} {tag}", self.runs());
        Ok(self::decorated(&tag))
    }
}

fn decorated(tag: &str) -> String {
    format!("<{tag}>")
}

#[tokio::test]
async fn methods_by_every_kind_of_self() {
    let shop = Arc::new(Shop::new());
    for _ in 0..2 {
        assert_eq!(Arc::clone(&shop).by_arc("k".to_owned()).await.expect("an answer"), 1);
        assert_eq!(shop.by_reference_to_arc("k").await.expect("an answer"), 2);
        assert_eq!(Shop::clone(&shop).by_value("k").await.expect("an answer"), 3);
        assert_eq!(shop.nested("k").await.expect("an answer"), "<tag 4>");
    }
}

/// A service that is not `Clone`, which is allowed because the body does not use `self`.
struct Fixed {
    executor: Executor<MemoryStore>,
    tenant: &'static str,
}

impl Fixed {
    #[idempotent(operation = "FIXED", executor = self.executor, tenant = self.tenant, key = key, fields())]
    async fn answer(&self, key: &str) -> Result<u32, Error<OutOfStock>> {
        Ok(42)
    }
}

#[tokio::test]
async fn a_self_that_only_the_attribute_uses_is_not_cloned() {
    let fixed = Fixed { executor: Executor::new(MemoryStore::new()), tenant: "acme" };
    assert_eq!(fixed.answer("k").await.expect("runs"), 42);
}

trait Orders {
    fn place(
        &self,
        key: &str,
        sku: String,
    ) -> impl Future<Output = Result<Execution<u32>, Error<OutOfStock>>> + Send;
}

impl Orders for Shop {
    #[idempotent(operation = "PLACE", executor = self.executor, tenant = "acme", key = key, fields(sku))]
    async fn place(&self, key: &str, sku: String) -> Result<Execution<u32>, Error<OutOfStock>> {
        if sku.is_empty() { Err(OutOfStock) } else { Ok(self.run()) }
    }
}

#[tokio::test]
async fn a_method_of_a_trait() {
    async fn twice(orders: impl Orders) -> (Option<u32>, bool) {
        let _ = orders.place("k", "A-1".to_owned()).await.expect("runs");
        let again = orders.place("k", "A-1".to_owned()).await.expect("replays");
        let replayed = again.replayed();
        (again.into_value(), replayed)
    }
    assert_eq!(twice(Shop::new()).await, (Some(1), true));
}

static EXECUTOR: OnceLock<Executor<MemoryStore>> = OnceLock::new();

fn executor() -> &'static Executor<MemoryStore> {
    EXECUTOR.get_or_init(|| Executor::new(MemoryStore::new()))
}

mod counter {
    use super::*;

    /// Other attributes are kept, and apply to the generated function.
    #[idempotent(operation = "COUNT", executor = executor(), tenant = "acme", key = key, fields())]
    #[tracing::instrument(skip_all, fields(key), ret)]
    #[deprecated = "tests that the attribute is kept"]
    pub(super) async fn count(key: &str, shop: Arc<Shop>) -> Result<u32, Error<OutOfStock>> {
        tracing::info!(shop = shop.runs(), "counting");
        Ok(shop.run())
    }
}

#[tokio::test]
#[expect(deprecated, reason = "the attribute is kept")]
async fn attributes_visibility_and_a_global_executor() {
    let shop = Arc::new(Shop::new());
    for _ in 0..2 {
        assert_eq!(counter::count("k", Arc::clone(&shop)).await.expect("an answer"), 1);
    }
}

macro_rules! counted {
    ($name:ident, $op:literal, $tenant:literal, $key:expr, $answer:ty) => {
        #[idempotent(operation = $op, executor = executor(), tenant = $tenant, key = $key, fields())]
        async fn $name(shop: Arc<Shop>) -> $answer {
            Ok(shop.run())
        }
    };
}

counted!(one_of_many, "ONE_OF_MANY", "acme", "k", Result<Execution<u32>, Error<OutOfStock>>);

#[tokio::test]
async fn a_function_that_another_macro_writes() {
    let shop = Arc::new(Shop::new());
    for replayed in [false, true] {
        let answer = one_of_many(Arc::clone(&shop)).await.expect("an answer");
        assert_eq!((answer.value(), answer.replayed()), (Some(&1), replayed));
    }
}

/// Generated code does not depend on names in scope, and its own names do not collide with others.
mod bare {
    #![no_implicit_prelude]

    use ::core::result::Result::{self, Err, Ok};
    use ::semel_macros::idempotent;

    pub(super) struct Bare {
        pub(super) executor: ::semel::Executor<::semel::store::memory::MemoryStore>,
    }

    impl ::core::clone::Clone for Bare {
        fn clone(&self) -> Self {
            Self { executor: ::core::clone::Clone::clone(&self.executor) }
        }
    }

    impl Bare {
        #[idempotent(
            operation = "BARE",
            executor = self.executor,
            tenant = __semel_key,
            principal = __semel_key,
            key = __semel_command,
            fields(__semel_held, __semel_executor),
            context = claim,
            wait = "1s"
        )]
        pub(super) async fn sum(
            &self,
            __semel_command: ::std::string::String,
            __semel_key: &str,
            __semel_executor: u32,
            __semel_held: u32,
        ) -> Result<::semel::Execution<u32>, ::semel::Error<u8>> {
            let __semel_self = &self.executor;
            let __semel_result = __semel_executor + __semel_held + claim.attempt();
            if __semel_result == 0 || __semel_command.is_empty() {
                return Err(0);
            }
            let _ = __semel_self.guarantee();
            Ok(__semel_result)
        }
    }
}

#[tokio::test]
async fn generated_names_do_not_collide_and_no_imports_are_needed() {
    let bare = bare::Bare { executor: Executor::new(MemoryStore::new()) };
    let first = bare.sum("k".to_owned(), "acme", 20, 21).await.expect("runs");
    assert_eq!(first.value(), Some(&42));
    assert!(bare.sum("k".to_owned(), "acme", 20, 21).await.expect("replays").replayed());
}
