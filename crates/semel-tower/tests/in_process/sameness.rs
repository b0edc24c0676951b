//! Tests which queries make the same request.

use axum::Router;
use axum::extract::RawQuery;
use axum::routing::post as on_post;
use semel_core::store::memory::MemoryStore;

use crate::backend::{post, run};
use crate::support::{layer, send};

/// Returns whether a second request under the same key is treated as a repeat of the first.
async fn same(first: &str, second: &str) -> bool {
    let handler = on_post(async |RawQuery(query): RawQuery| query.unwrap_or_default());
    let app = Router::new().route("/orders", handler).layer(layer(MemoryStore::new()));
    let ask = async |query: &str| send(&app, post(&format!("/orders?{query}"), "k", "{}")).await;
    assert_eq!(ask(first).await.text(), first);
    let again = ask(second).await;
    match again.problem().as_deref() {
        None => {
            assert_eq!((again.replayed(), again.text()), (true, first));
            true
        }
        Some(problem) => {
            assert_eq!((problem, again.status.as_u16()), ("key-reused", 422));
            false
        }
    }
}

#[test]
fn an_escape_that_means_something_else_is_another_request() {
    run(async {
        // In a form a plain plus is a space, and an escaped one is a plus.
        assert!(!same("e=a+b", "e=a%2Bb").await);
        assert!(!same("e=a%26b=c", "e=a&b=c").await);
        assert!(!same("e=a%3Db", "e=a=b").await);
        assert!(!same("e=%25", "e=%").await);
    });
}

#[test]
fn an_escape_that_was_not_needed_is_the_same_request() {
    run(async {
        assert!(same("e=%7E", "e=~").await);
        assert!(same("%65=%61", "e=a").await);
        assert!(same("e=%c3%a4", "e=%C3%A4").await);
    });
}
