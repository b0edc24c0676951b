//! Opens the store and the broker, however long they are away.

use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use crate::broker::BrokerPublisher;
use crate::destination::Destination;
use crate::exit::{Code, ExitError};
use crate::store::database::Database;
use crate::store::{OpenMode, StoreHandle};

/// The first and the longest pause between tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// An open store and its outbox, and a publisher.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) store: StoreHandle,
    pub(super) database: Database,
    pub(super) publisher: Arc<BrokerPublisher>,
    pub(super) destination: Destination,
}

/// Opens store and broker, and tries again as long as one of them cannot be reached. Logs that once for each, and
/// passes every reason to `waiting`.
pub(super) async fn open(plan: &Plan, waiting: impl Fn(&ExitError)) -> Result<Opened, ExitError> {
    let (store, database, destination) = until_reached(&waiting, || store(plan)).await?;
    let publisher = Arc::new(until_reached(&waiting, || plan.broker.publisher()).await?);
    Ok(Opened { store, database, publisher, destination })
}

/// Opens store and broker, or fails at once.
pub(super) async fn open_now(plan: &Plan) -> Result<Opened, ExitError> {
    let (store, database, destination) = store(plan).await?;
    let publisher = Arc::new(plan.broker.connected_publisher().await?);
    Ok(Opened { store, database, publisher, destination })
}

async fn store(plan: &Plan) -> Result<(StoreHandle, Database, Destination), ExitError> {
    let prefix = &plan.settings.ledger.prefix;
    let store = StoreHandle::open(&plan.store, OpenMode::Serve, prefix).await?;
    let database = store.database().ok_or_else(|| crate::command::no_database("outbox"))?;
    let destination = Destination::declare(&database, plan.broker.destination()).await?;
    Ok((store, database, destination))
}

async fn until_reached<T, F: Future<Output = Result<T, ExitError>>>(
    waiting: impl Fn(&ExitError),
    open: impl Fn() -> F,
) -> Result<T, ExitError> {
    let (mut pause, mut logged) = (PAUSE.0, false);
    loop {
        match open().await {
            Ok(opened) => return Ok(opened),
            Err(error) if error.code() == Code::Unreachable => {
                waiting(&error);
                if !logged {
                    tracing::warn!(%error, "not started yet; retrying until it answers");
                    logged = true;
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}
