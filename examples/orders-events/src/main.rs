//! Plays the whole chain: `orders-events [--store sqlite:PATH | postgres://…] [--broker bus | nats://…]`.

use std::process::ExitCode;
use std::time::Duration;

use orders_events::chain::{Broker, Shop, Trouble};
use orders_events::shop::Tables;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use tokio::time::Instant;

const USAGE: &str =
    "usage: orders-events [--store sqlite:PATH | postgres://…] [--broker bus | nats://…]";
/// Orders that the demonstration places, each of them three times.
const ORDERS: i64 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("orders-events: {trouble}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Trouble> {
    let (mut store, mut broker) = ("sqlite:orders-events.db".to_owned(), "bus".to_owned());
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--store" => store = value,
            "--broker" => broker = value,
            _ => return Err(USAGE.into()),
        }
    }
    let broker = match broker.as_str() {
        "bus" => Broker::Bus,
        url if url.starts_with("nats://") => {
            Broker::Nats { url: url.to_owned(), stream: "SHOP".to_owned() }
        }
        _ => return Err(USAGE.into()),
    };
    match store.split_once(':') {
        Some(("sqlite", path)) => play(SqliteStore::open(path).await?, &broker).await,
        Some(("postgres" | "postgresql", _)) => {
            let store = PgStore::connect(&store).await?;
            store.migrate().await?;
            play(store, &broker).await
        }
        _ => Err(USAGE.into()),
    }
}

async fn play<S: Tables>(store: S, broker: &Broker) -> Result<(), Trouble> {
    let shop = Shop::open(store, broker).await?;
    let (before, shelf, retry_payloads, _) = shop.count().await?;
    if shelf < ORDERS {
        return Err("the shelf is empty; give another --store, or remove the file".into());
    }
    // Keys of this run: on the same file, another run orders anew.
    let run = before / ORDERS + 1;
    println!("{ORDERS} orders of one tea each, every one sent three times …");
    let began = Instant::now();
    for n in 0..ORDERS {
        for _ in 0..3 {
            shop.order(&format!("run-{run}-order-{n}"), "tea", 1).await?;
        }
    }
    let expected = (before + ORDERS, retry_payloads + ORDERS);
    loop {
        let (orders, pieces, packed, letters) = shop.count().await?;
        if (orders, packed) == expected && letters == usize::try_from(ORDERS)? {
            println!(
                "orders {orders}, on the shelf {pieces}, retry_payloads {packed}, letters {letters}, after {:?}",
                began.elapsed()
            );
            break;
        }
        if began.elapsed() > Duration::from_secs(60) {
            let found = format!("orders {orders}, retry_payloads {packed}, letters {letters}");
            return Err(format!("not everything arrived within a minute: {found}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shop.close().await;
    Ok(())
}
