//! Public ids on every SQL database, with Redis between two nodes: what is registered, revoked and
//! created in a transaction, and when the other node sees it.

#[path = "ids/creating.rs"]
mod creating;
#[path = "ids/fixture.rs"]
mod fixture;
#[path = "ids/resolving.rs"]
mod resolving;
