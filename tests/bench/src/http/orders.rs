//! The measured service: `POST /orders`, and how it is served.
//!
//! It depends on no layer and on nothing in this workspace, because the peers' servers, which are
//! another package, compile this file too.

use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The body of a request: about 200 bytes of JSON.
#[derive(Deserialize)]
pub(crate) struct Order {
    reference: String,
    sku: String,
    quantity: u32,
    amount: u64,
    currency: String,
    note: String,
}

/// The body of a response: about 200 bytes of JSON. Id and reference have a fixed length and come first,
/// so that the load generator compares them without parsing JSON.
#[derive(Serialize)]
pub(crate) struct Placed {
    id: String,
    reference: String,
    sku: String,
    quantity: u32,
    amount: u64,
    currency: String,
    status: &'static str,
    note: String,
}

/// Takes orders and counts them.
#[derive(Clone, Default)]
pub(crate) struct Shop {
    executed: Arc<AtomicU64>,
}

impl Shop {
    /// Places an order. No two calls return the same result.
    pub(crate) fn place(&self, order: Order) -> Placed {
        let number = self.executed.fetch_add(1, Ordering::Relaxed);
        let Order { reference, sku, quantity, amount, currency, note } = order;
        let id = format!("{number:016x}");
        Placed { id, reference, sku, quantity, amount, currency, status: "accepted", note }
    }

    /// Returns the bare route `POST /orders`.
    pub(crate) fn routes(&self) -> Router {
        async fn create(
            State(shop): State<Shop>,
            Json(order): Json<Order>,
        ) -> (StatusCode, Json<Placed>) {
            (StatusCode::CREATED, Json(shop.place(order)))
        }
        Router::new().route("/orders", post(create)).with_state(self.clone())
    }

    /// Adds `GET /counts` to routes: the number of executed orders, and the number of calls of the
    /// store, if it is counted.
    pub(crate) fn counting(
        &self,
        routes: Router,
        asked: impl Fn() -> Option<u64> + Clone + Send + Sync + 'static,
    ) -> Router {
        let executed = Arc::clone(&self.executed);
        let counts = move || async move {
            let asked = asked().map_or_else(|| "-".to_owned(), |asked| asked.to_string());
            format!("{} {asked}", executed.load(Ordering::SeqCst))
        };
        Router::new().route("/counts", get(counts)).merge(routes)
    }
}

/// Serves on a loopback port, which is the only line that this process prints, until standard input
/// is closed, so that the server never outlives its parent.
pub(crate) async fn serve(app: Router) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    std::thread::spawn(|| {
        let mut nothing = [0; 64];
        while io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, app).await
}
