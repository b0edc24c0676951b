//! Tests that tenants, principals and operations never get each other's answers.

use semel::Error;
use semel_macros::idempotent;

use crate::{OutOfStock, Shop};

struct User {
    id: String,
}

impl Shop {
    #[idempotent(
        operation = "PAY",
        executor = self.executor,
        tenant = tenant,
        principal = user.id,
        key = key,
        fields()
    )]
    async fn pay(&self, tenant: &str, user: &User, key: &str) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }

    #[idempotent(
        operation = "REFUND",
        executor = self.executor,
        tenant = tenant,
        principal = user.id.as_bytes(),
        key = key,
        fields()
    )]
    async fn refund(&self, tenant: &str, user: &User, key: &str) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }

    #[idempotent(
        operation = "PAY",
        executor = self.executor,
        tenant = tenant,
        key = key,
        fields()
    )]
    async fn pay_without_principal(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }
}

#[tokio::test]
async fn tenants_principals_and_operations_have_separate_keys() {
    let shop = Shop::new();
    let (ann, bob) = (User { id: "ann".to_owned() }, User { id: "bob".to_owned() });
    let mut answers = Vec::new();
    // The second round repeats every call of the first.
    for _ in 0..2 {
        for tenant in ["acme", "globex"] {
            for user in [&ann, &bob] {
                answers.push(shop.pay(tenant, user, "k-1").await.expect("an answer"));
                answers.push(shop.refund(tenant, user, "k-1").await.expect("an answer"));
            }
            answers.push(shop.pay_without_principal(tenant, "k-1").await.expect("an answer"));
        }
    }
    let (first, second) = answers.split_at(10);
    assert_eq!(first, (1..=10).collect::<Vec<u32>>());
    assert_eq!(second, first);
}
