//! Tests the resolver with a map and a shared cache in memory that count calls, delay answers and
//! fail on command. The clock of the runtime is paused in most tests.

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
