//! Collects the errors in a use of the macro, so that one build shows all of them.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// The errors that were found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// Adds an error at `span`, which must be the span of one token.
    pub(crate) fn add(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Adds an error that spans all of `tokens`.
    pub(crate) fn add_at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds the error of a parser.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    /// Returns the value of `result`; adds the error and returns `None` if there is one.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Returns one `compile_error!` for each error; `None` if there are none.
    pub(crate) fn into_tokens(self) -> Option<TokenStream> {
        self.0.map(|all| all.into_compile_error())
    }
}
