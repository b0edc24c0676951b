//! Examines the body of the function, which becomes the work: the variables that it uses, and its
//! `self`.
//!
//! Macros inside the body are not expanded yet, so their tokens are searched. Uses that this search
//! misses are reported by the compiler.

use proc_macro2::{Group, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, ExprPath, Ident, Item, Macro, PatIdent};

/// Returns whether the body certainly uses the variable `name`. `false` if the body binds the name
/// again, since only the compiler can distinguish the two variables.
pub(crate) fn uses(body: &Block, name: &Ident) -> bool {
    struct Uses<'n> {
        name: &'n Ident,
        used: bool,
        bound: bool,
    }
    impl Visit<'_> for Uses<'_> {
        fn visit_expr_path(&mut self, path: &ExprPath) {
            self.used |= path.path.get_ident() == Some(self.name);
            visit::visit_expr_path(self, path);
        }
        fn visit_pat_ident(&mut self, pattern: &PatIdent) {
            self.bound |= pattern.ident == *self.name;
            visit::visit_pat_ident(self, pattern);
        }
        fn visit_macro(&mut self, called: &Macro) {
            self.used |= mentions(called.tokens.clone(), self.name);
        }
        // An item inside the body cannot use the function's variables.
        fn visit_item(&mut self, _: &Item) {}
    }
    let mut found = Uses { name, used: false, bound: false };
    found.visit_block(body);
    found.used && !found.bound
}

/// Returns whether a macro's tokens use `name` as a variable, rather than as a field (`.name`, `name:`) or a
/// label (`name = …`).
fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |at: usize, punct: char| {
        tokens
            .get(at)
            .is_some_and(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == punct))
    };
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Ident(ident) => {
            let member = at > 0 && is(at - 1, '.') && !(at > 1 && is(at - 2, '.'));
            let label = (is(at + 1, ':') || is(at + 1, '=')) && !is(at + 2, '=');
            ident == name && !member && !label
        }
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// Replaces every `self` of the body by `other`. Returns whether the body had a `self`.
pub(crate) fn rename_self(body: &mut Block, other: &Ident) -> bool {
    struct Rename<'n> {
        other: &'n Ident,
        found: bool,
    }
    impl Rename<'_> {
        fn named(&mut self, own: &Ident) -> Ident {
            self.found = true;
            Ident::new(&self.other.to_string(), self.other.span().located_at(own.span()))
        }
        fn tokens(&mut self, tokens: TokenStream) -> TokenStream {
            let mut rest = tokens.into_iter().peekable();
            let mut renamed = TokenStream::new();
            while let Some(token) = rest.next() {
                // `self::name` is a path into this module.
                let path = matches!(rest.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                renamed.extend([match token {
                    TokenTree::Ident(own) if own == "self" && !path => {
                        TokenTree::Ident(self.named(&own))
                    }
                    TokenTree::Group(group) => {
                        let inner = self.tokens(group.stream());
                        let mut copy = Group::new(group.delimiter(), inner);
                        copy.set_span(group.span());
                        TokenTree::Group(copy)
                    }
                    TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => token,
                }]);
            }
            renamed
        }
    }
    impl VisitMut for Rename<'_> {
        fn visit_expr_path_mut(&mut self, path: &mut ExprPath) {
            if path.path.is_ident("self") {
                let own = path.path.segments[0].ident.clone();
                path.path.segments[0].ident = self.named(&own);
            }
            visit_mut::visit_expr_path_mut(self, path);
        }
        fn visit_macro_mut(&mut self, called: &mut Macro) {
            called.tokens = self.tokens(std::mem::take(&mut called.tokens));
        }
        fn visit_expr_mut(&mut self, expr: &mut Expr) {
            if let Expr::Verbatim(tokens) = expr {
                *tokens = self.tokens(std::mem::take(tokens));
            }
            visit_mut::visit_expr_mut(self, expr);
        }
        // An item inside the body has its own `self`.
        fn visit_item_mut(&mut self, _: &mut Item) {}
    }
    let mut rename = Rename { other, found: false };
    rename.visit_block_mut(body);
    rename.found
}

/// Returns whether `#[tracing::instrument]` was expanded before this macro. It fixes the type of
/// the body to the function's return type, which is not the return type of the work.
pub(crate) fn is_instrumented(body: &Block) -> bool {
    struct Instrumented(bool);
    impl Visit<'_> for Instrumented {
        fn visit_pat_ident(&mut self, pattern: &PatIdent) {
            self.0 |= pattern.ident == "__tracing_attr_fake_return";
            visit::visit_pat_ident(self, pattern);
        }
    }
    let mut found = Instrumented(false);
    found.visit_block(body);
    found.0
}

#[cfg(test)]
mod tests {
    use quote::ToTokens as _;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_variable_is_distinguished_from_fields_labels_and_rebound_names() {
        let tenant: Ident = parse_quote!(tenant);
        let used: [Block; 6] = [
            parse_quote!({ f(tenant) }),
            parse_quote!({ Order { tenant } }),
            parse_quote!({ move || tenant.len() }),
            parse_quote!({ format!("{}", tenant) }),
            parse_quote!({ json!({ "tenant": [tenant] }) }),
            parse_quote!({ assert!(tenant == other.tenant) }),
        ];
        for body in &used {
            assert!(uses(body, &tenant), "{}", body.to_token_stream());
        }
        let not_used: [Block; 8] = [
            parse_quote!({ order.tenant }),
            parse_quote!({ Order { tenant: name } }),
            parse_quote!({ tenant::name() }),
            parse_quote!({
                let tenant = name();
                tenant.len()
            }),
            parse_quote!({ names.map(|tenant| tenant.len()) }),
            parse_quote!({
                fn tenant(tenant: u8) -> u8 {
                    tenant
                }
            }),
            parse_quote!({ info!(tenant = name, "{}", order.tenant) }),
            parse_quote!({ order!(tenant: name) }),
        ];
        for body in &not_used {
            assert!(!uses(body, &tenant), "{}", body.to_token_stream());
        }
    }

    #[test]
    fn self_is_renamed_in_macros_too_but_not_in_items_or_paths() {
        let other: Ident = parse_quote!(other);
        let mut body: Block = parse_quote!({
            impl Tag {
                fn id(&self) -> u8 {
                    self.0
                }
            }
            println!("{} {}", self.id, self::name());
            self::name(self)
        });
        assert!(rename_self(&mut body, &other));
        let expected: Block = parse_quote!({
            impl Tag {
                fn id(&self) -> u8 {
                    self.0
                }
            }
            println!("{} {}", other.id, self::name());
            self::name(other)
        });
        assert_eq!(body.to_token_stream().to_string(), expected.to_token_stream().to_string());
        let mut without: Block = parse_quote!({ self::name() });
        assert!(!rename_self(&mut without, &other));
    }
}
