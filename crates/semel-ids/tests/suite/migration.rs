//! Moving into the map: what a backfill, a verification and a repair do, and what they never do.

mod backfill;
mod checkpoints;
mod repair;
mod tables;
mod verify;
