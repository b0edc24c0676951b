//! Charges a card once, however often it is run.
//!
//! ```sh
//! cargo run -p semel-sql --features sqlite --example once -- KEY CENTS
//! ```
//!
//! The charge, the claim on KEY and the answer are one commit in `semel-once.db`. Run it again with
//! the same key, run several at once, kill one in the middle: the card is charged once. With the
//! same key and another amount, it is refused.

use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::{Command, Error, Execution, Executor, Fingerprint, Key, Wait};
use semel_sql::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use sqlx::Connection as _;

#[derive(Debug, Serialize, Deserialize)]
struct Charge {
    number: i64,
    cents: u64,
}

const FILE: &str = "semel-once.db";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(key), Some(cents)) = (arguments.next(), arguments.next()) else {
        return Err("usage: once KEY CENTS".into());
    };
    let cents: u64 = cents.parse()?;

    let executor = Executor::new(SqliteStore::open(FILE).await?);
    let mut reader = sqlx::SqliteConnection::connect(&format!("sqlite:{FILE}")).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS charge (number INTEGER PRIMARY KEY, cents INTEGER)")
        .execute(&mut reader)
        .await?;

    let command = Command::new(Key::command("demo", "CHARGE", &key)?)
        .fingerprint(Fingerprint::of(&cents)?)
        .wait(Wait::UpTo(Duration::from_secs(10)));
    let charged = executor
        .transact(command, move |mut unit: Unit<SqliteStore>| async move {
            println!("charging {cents} cents … (a good moment to kill me)");
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (number,) =
                sqlx::query_as("INSERT INTO charge (cents) VALUES (?) RETURNING number")
                    .bind(i64::try_from(cents).unwrap_or(i64::MAX))
                    .fetch_one(unit.conn())
                    .await?;
            Ok::<_, sqlx::Error>(Charge { number, cents })
        })
        .await;

    match charged {
        Ok(Execution::Executed { value, .. }) => println!("charged now: {value:?}"),
        Ok(Execution::Replayed { value, .. }) => println!("charged before: {value:?}"),
        Ok(Execution::InProgress { .. }) => println!("somebody is charging it right now"),
        Err(Error::Mismatch) => println!("refused: this key was used for another amount"),
        Err(error) => return Err(error.into()),
    }
    let (count,): (i64,) =
        sqlx::query_as("SELECT count(*) FROM charge").fetch_one(&mut reader).await?;
    println!("charges in {FILE}: {count}");
    Ok(())
}
