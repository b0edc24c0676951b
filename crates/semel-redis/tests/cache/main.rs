//! The shared cache on real servers: entries, news, and servers that hang, die and come back.

mod entries;
mod fixture;
mod news;
mod outage;
mod refusing;
