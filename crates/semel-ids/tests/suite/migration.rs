//! Tests the migration into the map: backfill, verify and repair.

mod backfill;
mod checkpoints;
mod repair;
mod tables;
mod verify;
