//! `#[idempotent]`: async functions that run once.
#![doc = include_str!("../README.md")]
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a syntax tree has forty kinds of expression, and we look for one of them"
)]

mod arguments;
mod body;
mod complaints;
mod duration;
mod expand;
mod fields;
mod setting;
mod signature;

use proc_macro::TokenStream;

/// Makes an async function run once per key. The [crate's page](crate) has the arguments and the
/// rules.
///
/// ```
/// use semel::store::memory::MemoryStore;
/// use semel::{Error, Execution, Executor};
/// use semel_macros::idempotent;
///
/// #[idempotent(operation = "GREET", executor = executor, tenant = "acme", key = key, fields(name))]
/// async fn greet(
///     executor: &Executor<MemoryStore>,
///     key: &str,
///     name: String,
/// ) -> Result<Execution<String>, Error<std::io::Error>> {
///     Ok(format!("hello, {name}"))
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let executor = Executor::new(MemoryStore::new());
/// let first = greet(&executor, "k-1", "ann".to_owned()).await?;
/// let again = greet(&executor, "k-1", "ann".to_owned()).await?;
/// assert!(!first.replayed() && again.replayed());
/// # Ok::<(), Error<std::io::Error>>(())
/// # }).unwrap();
/// ```
///
/// The function becomes, in essence:
///
/// ```
/// # use semel::store::memory::MemoryStore;
/// # use semel::{Command, Error, Execution, Executor, Fingerprint, Key};
/// # #[derive(serde::Serialize)]
/// # struct Fields<'a> { name: &'a str }
/// async fn greet(
///     executor: &Executor<MemoryStore>,
///     key: &str,
///     name: String,
/// ) -> Result<Execution<String>, Error<std::io::Error>> {
///     let command = Command::new(Key::command("acme", "GREET", key)?)
///         .fingerprint(Fingerprint::of(&Fields { name: &name })?);
///     executor.run(command, move |_claim| async move { Ok(format!("hello, {name}")) }).await
/// }
/// ```
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, function: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), function.into()).into()
}
