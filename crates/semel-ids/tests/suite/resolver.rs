//! The resolver over a map in memory that counts, waits and fails on command, and a shared cache
//! that does the same. Time stands still unless a test moves it.

mod counting;
mod levels;
mod loading;
mod model;
mod nodes;
mod racing;
mod removing;
mod revoking;
mod rotating;
mod sharing;
