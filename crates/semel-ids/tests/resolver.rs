//! The resolver over a map in memory that counts, waits and fails on command, and a shared cache
//! that does the same. Time stands still unless a test moves it.

#[path = "resolver/counting.rs"]
mod counting;
#[path = "resolver/levels.rs"]
mod levels;
#[path = "resolver/loading.rs"]
mod loading;
#[path = "resolver/model.rs"]
mod model;
#[path = "resolver/racing.rs"]
mod racing;
#[path = "resolver/removing.rs"]
mod removing;
#[path = "resolver/revoking.rs"]
mod revoking;
#[path = "resolver/rotating.rs"]
mod rotating;
#[path = "resolver/scene.rs"]
mod scene;
#[path = "resolver/sharing.rs"]
mod sharing;
