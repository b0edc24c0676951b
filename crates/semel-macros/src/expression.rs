//! Reads expressions of the attribute, even if a `macro_rules!` macro passes them.

use syn::{Expr, Lit, LitStr};

/// Returns the expression without the invisible group that `macro_rules!` puts around an
/// expression.
pub(crate) fn ungrouped(value: &Expr) -> &Expr {
    match value {
        Expr::Group(group) => ungrouped(&group.expr),
        value => value,
    }
}

/// Returns the string literal if `value` is one.
pub(crate) fn literal(value: &Expr) -> Option<&LitStr> {
    if let Expr::Lit(literal) = ungrouped(value)
        && let Lit::Str(text) = &literal.lit
    {
        return Some(text);
    }
    None
}
