//! Parses `fields(…)`: the values that make two requests under one key the same request.
//!
//! The fields become one JSON object, so that the fingerprint equals `Fingerprint::of(&struct)` of
//! a struct with the same members. Members are ordered by name, so that the order in the attribute
//! does not matter, even if the object has no canonical form and is hashed as raw bytes.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Expr, Ident, Member, Token};

use crate::errors::Errors;
use crate::expression::ungrouped;

/// The fields, ordered by name. If there are none, only the key is compared.
pub(crate) struct Fields(Vec<Field>);

struct Field {
    name: String,
    value: Expr,
}

/// A field as it was written: `request.sku` or `amount = request.cents`.
struct WrittenField {
    name: Option<Ident>,
    value: Expr,
}

impl Parse for WrittenField {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let named = input.peek(Ident::peek_any) && input.peek2(Token![=]);
        let name = if named {
            let name = input.call(Ident::parse_any)?;
            input.parse::<Token![=]>()?;
            Some(name)
        } else {
            None
        };
        Ok(Self { name, value: input.parse()? })
    }
}

impl Fields {
    /// Parses the list of fields.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let parser = Punctuated::<WrittenField, Token![,]>::parse_terminated;
        let written = errors.take(syn::parse::Parser::parse2(parser, tokens));
        let mut fields: Vec<Field> = Vec::new();
        for WrittenField { name, value } in written.unwrap_or_default() {
            let Some((name, at)) = name.map(named).or_else(|| own_name(&value)) else {
                errors.add_at(&value, "this field has no name of its own; give it one: `name = …`");
                continue;
            };
            if fields.iter().any(|field| field.name == name) {
                let message =
                    format!("two fields are named `{name}`; give one another name: `name = …`");
                errors.add(at, message);
                continue;
            }
            fields.push(Field { name, value });
        }
        fields.sort_by(|one, two| one.name.cmp(&two.name));
        Self(fields)
    }

    /// Returns an expression of type `Result<Fingerprint, InvalidFingerprint>`; `None` if there are
    /// no fields.
    pub(crate) fn fingerprint(&self) -> Option<TokenStream> {
        if self.0.is_empty() {
            return None;
        }
        let count = self.0.len();
        let names: Vec<&str> = self.0.iter().map(|field| field.name.as_str()).collect();
        let types: Vec<Ident> = (0..count).map(|n| format_ident!("__T{n}")).collect();
        let places: Vec<syn::Index> = (0..count).map(syn::Index::from).collect();
        let values = self.0.iter().map(|Field { value, .. }| {
            let at = Span::mixed_site().located_at(value.span());
            quote_spanned!(at=> &(#value))
        });
        let at = Span::mixed_site();
        Some(quote_spanned! {at=>
            {
                struct __SemelFields<'semel, #(#types: ::semel::__serde::Serialize + ?::core::marker::Sized),*>(
                    #(&'semel #types),*
                );
                impl<#(#types: ::semel::__serde::Serialize + ?::core::marker::Sized),*> ::semel::__serde::Serialize
                    for __SemelFields<'_, #(#types),*>
                {
                    fn serialize<__S: ::semel::__serde::Serializer>(
                        &self,
                        serializer: __S,
                    ) -> ::core::result::Result<__S::Ok, __S::Error> {
                        let mut map = ::semel::__serde::Serializer::serialize_map(
                            serializer,
                            ::core::option::Option::Some(#count),
                        )?;
                        #(::semel::__serde::ser::SerializeMap::serialize_entry(
                            &mut map,
                            #names,
                            self.#places,
                        )?;)*
                        ::semel::__serde::ser::SerializeMap::end(map)
                    }
                }
                ::semel::Fingerprint::of(&__SemelFields(#(#values),*))
            }
        })
    }
}

fn named(ident: Ident) -> (String, Span) {
    (ident.unraw().to_string(), ident.span())
}

/// Returns the last name in an expression: `sku` for `request.sku`, `amount` for `amount`.
fn own_name(value: &Expr) -> Option<(String, Span)> {
    match ungrouped(value) {
        Expr::Path(path) => path.path.segments.last().map(|last| named(last.ident.clone())),
        Expr::Field(field) => match &field.member {
            Member::Named(ident) => Some(named(ident.clone())),
            Member::Unnamed(_) => None,
        },
        Expr::Reference(reference) => own_name(&reference.expr),
        Expr::Paren(paren) => own_name(&paren.expr),
        _ => None,
    }
}
