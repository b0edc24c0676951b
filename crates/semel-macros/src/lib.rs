//! `#[idempotent]` makes async functions run once per key; `#[derive(Resource)]` defines resource types with
//! public ids.
#![doc = include_str!("../README.md")]
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a syntax tree has forty kinds of expressions, and only one of them is relevant"
)]

mod arguments;
mod body;
mod duration;
mod errors;
mod expand;
mod expression;
mod fields;
mod resource;
mod setting;
mod signature;

use proc_macro::TokenStream;

/// Makes an async function run once per key. The [crate documentation](crate) lists the arguments
/// and the rules.
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

/// Makes a unit struct or an empty enum a resource type with public ids: a `semel::ids::Resource`.
///
/// ```
/// use semel::ids::TypedId;
/// use semel_macros::Resource;
///
/// #[derive(Resource)]
/// #[resource(type = "WALLET_ACCOUNT", prefix = "wac", checksum)]
/// enum WalletAccount {}
///
/// type WalletAccountId = TypedId<WalletAccount>;
/// let id: WalletAccountId = "wac_01arz3ndektsv4rrffq69g5fav_3K".parse()?;
/// assert!("wac_01arz3ndektsv4rrffq69g5fav".parse::<WalletAccountId>().is_err());
/// # Ok::<(), semel::ids::InvalidId>(())
/// ```
///
/// | argument | what it is |
/// |---|---|
/// | `type = "…"` | required. The name of the type in the map: a capital letter and at most 31 capital letters, digits and underscores |
/// | `prefix = "…"` | required. The prefix of its public ids: a lower-case letter and 1 to 9 lower-case letters or digits. Unique among the types of a service; `semel::ids::Registry` checks it |
/// | `checksum` | appends two characters, by which a mistyped id is refused without a lookup |
/// | `base62` | encodes ids in base62: four characters shorter, with letters of both cases |
///
/// None of these arguments can be changed once ids are in use, since an id has only one spelling.
/// For a codec that hides the time of ids, implement the trait manually.
#[proc_macro_derive(Resource, attributes(resource))]
pub fn resource(item: TokenStream) -> TokenStream {
    resource::expand(item.into()).into()
}
