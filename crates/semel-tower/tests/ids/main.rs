//! Tests of the extractors of public ids: what handlers and callers get.

mod many;
mod one;
mod problems;
mod support;
