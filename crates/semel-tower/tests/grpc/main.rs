//! The gRPC layer's protocol: a tonic server and a tonic client, over real sockets, on every store.
//!
//! What a tonic client hides (which metadata came first and which last) is looked at with an HTTP/2
//! client of the common backend.

#[path = "../backend.rs"]
mod backend;

/// Makes one `#[test]` per store of each `async fn name<G: Backend>(backend: G)` in this module.
macro_rules! on_every_store {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory Memory $($test)* }
        crate::backend::tests_on! { sqlite Sqlite $($test)* }
        crate::backend::tests_on! { postgres Postgres $($test)* }
        crate::backend::tests_on! { mariadb MariaDb $($test)* }
        crate::backend::tests_on! { redis Redis $($test)* }
    };
}

/// The same where the store does not matter.
macro_rules! in_memory {
    ($($test:ident,)*) => {
        crate::backend::tests_on! { memory_only Memory $($test)* }
    };
}

mod bank;
mod departures;
mod desk;

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
