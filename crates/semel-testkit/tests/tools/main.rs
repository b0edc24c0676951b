//! The tools of the kit: effects and histories, the fault store, the fault proxy, the map in memory.

mod effects;
mod faulty;
mod idmap_memory;
mod proxy;
