//! Defines the types that the tested signatures use. The macros report the mistakes before the real
//! crate is needed, and building the real crate would take most of the test's time.

pub struct AnyStore;
pub struct Executor<S>(pub S);
pub struct Execution<T>(pub T);
pub struct Error<E>(pub E);
