//! The consumer groups. They are independent of each other and of the broker.
//!
//! INVENTORY and SHIPPING write in the transaction that records the event as handled. LETTERS has
//! an effect outside the database: it passes on a key by which the post office recognises a repeat.

use std::sync::{Arc, Mutex, PoisonError};

use semel::Executor;
use semel::event::Event;
use semel::executor::{Context, Unit};
use semel::inbox::{Failure, Group, Inbox};

use crate::orders::{Order, PLACED};
use crate::tables::Tables;

/// The type of the event that the goods of an order were reserved.
pub const RESERVED: &str = "order.reserved";

/// The post office of the example: stores letters by their key and so recognises repeats.
#[derive(Clone, Debug, Default)]
pub struct Letters(Arc<Mutex<Vec<(String, String)>>>);

impl Letters {
    fn send(&self, key: String, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((key, text));
    }

    /// Returns all letters with their keys, in the order of sending.
    pub fn sent(&self) -> Vec<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the groups that handle the shop's events.
pub fn groups<S: Tables>(executor: &Executor<S>, letters: &Letters) -> [Group<S>; 3] {
    let inbox = Inbox::new(executor.clone());
    let letters = letters.clone();
    [
        inbox.group("INVENTORY").ignore_unknown().on_atomic(
            PLACED,
            |event: Arc<Event>, unit| async move { reserve(&event, unit).await },
        ),
        inbox
            .group("SHIPPING")
            .ignore_unknown()
            .on_atomic(RESERVED, |event: Arc<Event>, unit| async move { pack(&event, unit).await }),
        inbox.group("LETTERS").ignore_unknown().on_fenced(
            PLACED,
            move |event: Arc<Event>, claim| {
                let letters = letters.clone();
                async move { thank(&event, &claim, &letters) }
            },
        ),
    ]
}

/// Takes the goods of an order from stock and appends the next event, in one commit.
async fn reserve<S: Tables>(event: &Event, mut unit: Unit<S>) -> Result<(), Failure> {
    // No retry would make the event readable: it is dead at once, with the reason.
    let order: Order = event.parse().map_err(Failure::hopeless)?;
    if !S::take_goods(unit.conn(), &order).await? {
        return Err(Failure::retry(format!("too few {} are left", order.sku)));
    }
    let reserved = event.followed_by(RESERVED, "/inventory").about("order", &order.id.to_string());
    unit.append([reserved.json(&order).build().map_err(Failure::hopeless)?]).await?;
    Ok(())
}

/// Packs a parcel.
async fn pack<S: Tables>(event: &Event, mut unit: Unit<S>) -> Result<(), Failure> {
    let order: Order = event.parse().map_err(Failure::hopeless)?;
    S::insert_parcel(unit.conn(), &order).await?;
    Ok(())
}

/// Sends a letter under a key that is the same in every attempt.
fn thank(event: &Event, claim: &Context, letters: &Letters) -> Result<(), Failure> {
    let order: Order = event.parse().map_err(Failure::hopeless)?;
    let key = claim.downstream_key("letter")?;
    letters.send(key, format!("thank you for {} {}", order.quantity, order.sku));
    Ok(())
}
