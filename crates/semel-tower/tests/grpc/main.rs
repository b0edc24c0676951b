//! Tests of the gRPC layer's protocol with a tonic server and a tonic client, over real sockets, on
//! every store.
//!
//! Details that a tonic client hides, such as the difference between initial and trailing metadata,
//! are checked with the HTTP/2 client of the common backend.

#[path = "../backend.rs"]
mod backend;

/// Creates one `#[test]` per store for each `async fn name<G: Backend>(backend: G)` in the module.
macro_rules! on_every_store {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory Memory $($test)* }
        crate::backend::tests_on! { sqlite Sqlite $($test)* }
        crate::backend::tests_on! { postgres Postgres $($test)* }
        crate::backend::tests_on! { mariadb MariaDb $($test)* }
        crate::backend::tests_on! { redis Redis $($test)* }
    };
}

/// Creates the tests for memory only, where the store does not matter.
macro_rules! in_memory {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory_only Memory $($test)* }
    };
}

mod bank;
mod bank_server;
mod departures;

mod answers;
mod atomic;
mod clients;
mod codes;
mod endings;
mod identity;
mod keys;
mod leaving;
mod limits;
mod metadata;
mod places;
mod repeats;
mod sameness;
mod streams;
