//! Parses settings: the arguments that call the setter of `semel::Command` with the same name.
//!
//! Literals are validated at compile time; other expressions must have the setter's type, and the
//! executor validates them when the function is called.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Expr, Ident, Lit};

use crate::duration;
use crate::expression::{literal, ungrouped};

/// The limits of a lease, as in `semel::Policy`.
const MIN_LEASE: Duration = Duration::from_millis(100);
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

/// A setter of `Command` and its argument.
pub(crate) struct Setting {
    name: Ident,
    value: TokenStream,
}

/// Writes the call `.name(value)`.
impl ToTokens for Setting {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let Self { name, value } = self;
        tokens.extend(quote!(.#name(#value)));
    }
}

impl Setting {
    /// Creates a setter without an argument.
    pub(crate) fn flag(name: Ident) -> Self {
        Self { name, value: TokenStream::new() }
    }
}

/// Parses the setting `name = value`.
pub(crate) fn parse(name: Ident, value: Expr) -> syn::Result<Setting> {
    let value = match name.to_string().as_str() {
        "keep" => length(&value, |keep| {
            keep.is_zero().then_some("nothing would be kept, so no repeat could be recognised")
        })?,
        "lease" => length(&value, |lease| {
            let fits = (MIN_LEASE..=MAX_LEASE).contains(&lease);
            (!fits).then_some("a lease lasts between 100ms and 24h; it is renewed while work runs")
        })?,
        "work_timeout" => length(&value, |_| None)?,
        "wait" if literal(&value).is_some() => {
            let limit = length(&value, |_| None)?;
            quote!(::semel::Wait::UpTo(#limit))
        }
        "max_attempts" if is_zero(&value) => {
            let message = "nothing could ever run; leave it out for unlimited attempts";
            return Err(syn::Error::new_spanned(&value, message));
        }
        _ => value.into_token_stream(),
    };
    Ok(Setting { name, value })
}

/// Returns an expression for a duration: a parsed literal, or `value` unchanged.
fn length(
    value: &Expr,
    wrong: impl FnOnce(Duration) -> Option<&'static str>,
) -> syn::Result<TokenStream> {
    let Some(literal) = literal(value) else { return Ok(value.into_token_stream()) };
    let duration = duration::parse(literal)?;
    if let Some(message) = wrong(duration) {
        return Err(syn::Error::new(literal.span(), message));
    }
    let at = Span::mixed_site().located_at(literal.span());
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    Ok(quote_spanned!(at=> ::core::time::Duration::new(#seconds, #nanos)))
}

fn is_zero(value: &Expr) -> bool {
    if let Expr::Lit(literal) = ungrouped(value)
        && let Lit::Int(number) = &literal.lit
    {
        return number.base10_parse::<u128>().is_ok_and(|number| number == 0);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_those_of_policies() {
        assert_eq!((MIN_LEASE, MAX_LEASE), (semel::Policy::MIN_LEASE, semel::Policy::MAX_LEASE));
    }
}
