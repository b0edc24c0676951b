//! Names that signatures mention. The mistakes here are found before anything of the real crate is
//! needed, and building it would cost this test most of its time.

pub struct AnyStore;
pub struct Executor<S>(pub S);
pub struct Execution<T>(pub T);
pub struct Error<E>(pub E);
