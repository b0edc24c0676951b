//! Expressions as they were written, also through a `macro_rules!` macro.

use syn::{Expr, Lit, LitStr};

/// Returns the expression without the invisible group that `macro_rules!` puts around one.
pub(crate) fn bare(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => bare(&group.expr),
        value => value,
    }
}

/// Returns the string literal that `value` is, if it is one.
pub(crate) fn literal(value: &Expr) -> Option<&LitStr> {
    if let Expr::Lit(literal) = bare(value)
        && let Lit::Str(text) = &literal.lit
    {
        return Some(text);
    }
    None
}
