#[path = "beside/semel.rs"]
mod semel;

use std::pin::Pin;

use semel_macros::idempotent;

struct Shop {
    executor: semel::Executor<semel::AnyStore>,
    total: u32,
}

impl Shop {
    #[idempotent(operation = "CHARGE", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn mutable(&mut self, key: &str) -> Result<u32, semel::Error<String>> {
        self.total += 1;
        Ok(self.total)
    }

    #[idempotent(operation = "CHARGE", executor = self.executor, tenant = "acme", key = key, fields())]
    async fn pinned(self: Pin<&Self>, key: &str) -> Result<u32, semel::Error<String>> {
        Ok(self.total)
    }
}

fn main() {}
