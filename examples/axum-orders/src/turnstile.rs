//! A turnstile between the claim and the handler, so that the demo and the tests can act during a
//! request without guessing how long it takes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::sync::watch;

/// Holds requests while it is closed. Clones share one turnstile.
#[derive(Clone, Debug)]
pub struct Turnstile(Arc<Sides>);

#[derive(Debug)]
struct Sides {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

impl Default for Turnstile {
    fn default() -> Self {
        let (open, arrived) = (watch::Sender::new(true), watch::Sender::new(0));
        Self(Arc::new(Sides { open, arrived }))
    }
}

impl Turnstile {
    /// Puts the turnstile in front of these routes.
    pub fn around(&self, routes: Router) -> Router {
        routes.layer(from_fn_with_state(self.clone(), pass))
    }

    /// Makes requests wait from now on.
    pub fn close(&self) {
        self.0.open.send_replace(false);
    }

    /// Lets all requests continue.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// Returns the number of requests that have arrived so far.
    pub fn arrived(&self) -> usize {
        *self.0.arrived.borrow()
    }

    /// Waits until `count` requests have arrived.
    pub async fn until_arrived(&self, count: usize) {
        let mut arrived = self.0.arrived.subscribe();
        arrived.wait_for(|arrived| *arrived >= count).await.expect("the turnstile owns the sender");
    }
}

async fn pass(State(turnstile): State<Turnstile>, request: Request, next: Next) -> Response {
    let mut open = turnstile.0.open.subscribe();
    turnstile.0.arrived.send_modify(|arrived| *arrived += 1);
    open.wait_for(|open| *open).await.expect("the turnstile owns the sender");
    next.run(request).await
}
