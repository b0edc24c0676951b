//! Collects the errors in a use of the macro, so that one build shows all of them.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// The errors so far.
#[derive(Default)]
pub(crate) struct Complaints(Option<syn::Error>);

impl Complaints {
    /// Adds an error at `span`, which is that of one token.
    pub(crate) fn add(&mut self, span: Span, message: impl Display) {
        self.note(syn::Error::new(span, message));
    }

    /// Adds an error at all of `tokens`.
    pub(crate) fn add_at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.note(syn::Error::new_spanned(tokens, message));
    }

    /// Adds the error of a parser.
    pub(crate) fn note(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    /// Returns the value; `None` for an error, which is added.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(error)).ok()
    }

    /// Returns one `compile_error!` for each error; `None` if there are none.
    pub(crate) fn into_tokens(self) -> Option<TokenStream> {
        self.0.map(|all| all.into_compile_error())
    }
}
