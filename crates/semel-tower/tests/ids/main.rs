//! Extractors of public ids: what handlers get, and what callers are told.

mod many;
mod one;
mod problems;
mod stage;
