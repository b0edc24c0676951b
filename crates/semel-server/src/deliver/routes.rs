//! Where events go: to each subscription that wants their type and tenant. The relay's publisher.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::StatusCode;
use metrics::counter;
use semel_core::Event;
use semel_core::inbox::{HandleError, Subscription};
use semel_core::outbox::{PublishError, Publisher};
use serde_json::{Value, json};

use super::Subscriber;
use crate::settings::{SubscriptionSettings, TypePattern};
use crate::store::database::Database;

/// The largest number of events that are stored at once.
const AT_ONCE: usize = 64;

/// A subscription, and the events that it wants.
pub(super) struct Route {
    types: Vec<TypePattern>,
    tenant: Option<String>,
    subscription: Subscription<Database>,
}

impl Route {
    pub(super) fn new(
        settings: &SubscriptionSettings,
        subscription: Subscription<Database>,
    ) -> Self {
        Self { types: settings.types.clone(), tenant: settings.tenant.clone(), subscription }
    }

    fn wants(&self, event: &Event) -> bool {
        self.tenant.as_deref().is_none_or(|tenant| tenant == event.tenant())
            && self.types.iter().any(|pattern| pattern.matches(event.kind()))
    }
}

/// Stores each event for every subscription that wants it.
pub(super) struct Routes {
    routes: Arc<[Route]>,
    /// Whether an event that no subscription wants was logged.
    warned: AtomicBool,
}

impl Routes {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        Self { routes: routes.into(), warned: AtomicBool::new(false) }
    }

    async fn store(&self, event: &Event) -> Result<(), PublishError> {
        let event = Arc::new(event.clone());
        let mut wanted = false;
        for route in self.routes.iter().filter(|route| route.wants(&event)) {
            wanted = true;
            match route.subscription.store(&event).await {
                // Another event has this id: stored as dead, for an operator.
                Ok(()) | Err(HandleError::Conflict) => {}
                Err(HandleError::Key(error)) => {
                    return Err(PublishError::Refused(error.to_string()));
                }
                Err(
                    error @ (HandleError::Executor(_)
                    | HandleError::Failed { .. }
                    | HandleError::HolderFailed { .. }),
                ) => {
                    let group = route.subscription.name();
                    let text = format!("the event was not stored for {group}: {error}");
                    return Err(PublishError::Unavailable(text));
                }
            }
        }
        if !wanted {
            counter!("semel_deliver_unwanted_total").increment(1);
            if !self.warned.swap(true, Ordering::Relaxed) {
                let (kind, tenant) = (event.kind(), event.tenant());
                tracing::warn!(
                    kind,
                    tenant,
                    "no subscription wants this event, so it goes nowhere; check `types` and `tenant` of the \
                     subscriptions. Further ones are counted in semel_deliver_unwanted_total"
                );
            }
        }
        Ok(())
    }
}

impl Publisher for Routes {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let storing: Vec<BoxFuture<'_, _>> =
            events.iter().map(|event| Box::pin(self.store(event)) as _).collect();
        stream::iter(storing).buffered(AT_ONCE).collect().await
    }
}

/// Returns the path of the admin listener that shows the subscriptions. Nothing can be changed there: a page in a
/// browser on this machine could send such a request.
pub(super) fn admin(subscribers: Arc<Vec<Subscriber>>) -> Router {
    Router::new().route("/subscriptions", get(list)).with_state(subscribers)
}

async fn list(State(subscribers): State<Arc<Vec<Subscriber>>>) -> (StatusCode, Json<Value>) {
    let mut all = Vec::new();
    for Subscriber { subscription, disabled } in subscribers.iter() {
        let Ok(waiting) = subscription.group().waiting().await else {
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                Json(json!({ "error": "the store does not answer" })),
            );
        };
        all.push(json!({
            "group": subscription.name(),
            "disabled": disabled.is_disabled(),
            "waiting": waiting.failed,
            "dead": waiting.dead,
            "held_aggregates": subscription.held(),
        }));
    }
    (StatusCode::OK, Json(json!({ "subscriptions": all })))
}
