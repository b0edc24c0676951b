//! Public ids on real databases, with a real Redis between two nodes: what is registered, revoked and
//! made in a transaction, and who knows of it when.

#[path = "ids/creating.rs"]
mod creating;
#[path = "ids/resolving.rs"]
mod resolving;
#[path = "ids/scene.rs"]
mod scene;
