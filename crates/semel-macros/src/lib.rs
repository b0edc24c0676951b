//! `#[idempotent]`: async functions that run once.
#![doc = include_str!("../README.md")]

mod arguments;
mod body;
mod complaints;
mod duration;
mod expand;
mod fields;
mod setting;
mod signature;

use proc_macro::TokenStream;

/// Makes an async function run once per key.
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into()).into()
}
