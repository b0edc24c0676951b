//! Complaints: what is wrong with a use of the macro, gathered so that one build shows all of it.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// Every complaint so far.
#[derive(Default)]
pub(crate) struct Complaints(Option<syn::Error>);

impl Complaints {
    /// Notes `message` at `span`, which is that of one token.
    pub(crate) fn add(&mut self, span: Span, message: impl Display) {
        self.note(syn::Error::new(span, message));
    }

    /// Notes `message` at all of `tokens`.
    pub(crate) fn add_at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.note(syn::Error::new_spanned(tokens, message));
    }

    /// Notes what a parser said.
    pub(crate) fn note(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    /// The value, or `None` with its complaint noted.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.note(error)).ok()
    }

    /// One `compile_error!` each; `None` if there is nothing to complain about.
    pub(crate) fn into_tokens(self) -> Option<TokenStream> {
        self.0.map(|all| all.into_compile_error())
    }
}
