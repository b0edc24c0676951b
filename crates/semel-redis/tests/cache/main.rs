//! Tests the shared cache on real servers: entries, invalidations, and servers that hang, die and
//! come back.

mod entries;
mod fixture;
mod invalidations;
mod outage;
mod refusing;
