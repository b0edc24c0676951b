//! One test per guard: each fails when its guard is removed (`cargo xtask faults sabotage`).
//!
//! The tests use an executor on the stores whose URLs are in the environment, and each asserts that
//! its fault really happened. Processes that die are in `faults.rs`.

#[path = "guards/caller.rs"]
mod caller;
#[path = "guards/clock.rs"]
mod clock;
#[path = "guards/commit.rs"]
mod commit;
#[path = "guards/events.rs"]
mod events;
#[path = "guards/fence.rs"]
mod fence;
#[path = "guards/heartbeat.rs"]
mod heartbeat;
#[path = "guards/identity.rs"]
mod identity;
#[path = "guards/judging.rs"]
mod judging;
#[path = "guards/replies.rs"]
mod replies;
#[path = "guards/rollback.rs"]
mod rollback;
