//! The tools of this crate: effects and histories, the faulty store, the fault proxy, the map in
//! memory.

mod effects;
mod faulty;
mod idmap_memory;
mod proxy;
