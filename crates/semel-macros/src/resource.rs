//! Implements `#[derive(Resource)]`, which defines a resource type with public ids.
//!
//! Name and prefix are validated here, because the compiler evaluates the constants of `semel-ids`
//! only if they are used.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Expr, Fields, Ident, LitStr, Token};

use crate::errors::Errors;
use crate::expression::literal;

/// Every argument, in the order in which the documentation lists them.
const KNOWN: [&str; 4] = ["type", "prefix", "checksum", "base62"];

/// The longest name and prefix, in bytes: the limits of `semel::ids`.
const MAX_TYPE: usize = 32;
const MAX_PREFIX: usize = 10;

/// Returns the implementation of `semel::ids::Resource`.
pub(crate) fn expand(item: TokenStream) -> TokenStream {
    let item = match syn::parse2::<DeriveInput>(item) {
        Ok(item) => item,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    shape(&item, &mut errors);
    let partial = PartialArguments::read(&item, &mut errors);
    match (errors.into_tokens(), partial) {
        (None, PartialArguments { name: Some(name), prefix: Some(prefix), checksum, base62 }) => {
            implementation(&item.ident, &name, &prefix, checksum, base62)
        }
        (errors, _) => errors.unwrap_or_default(),
    }
}

fn implementation(
    item: &Ident,
    name: &LitStr,
    prefix: &LitStr,
    checksum: bool,
    base62: bool,
) -> TokenStream {
    let at = Span::mixed_site();
    let base62 = base62.then(|| quote_spanned!(at=> .base62()));
    let checksum = checksum.then(|| quote_spanned!(at=> .checksum()));
    let codec = (base62.is_some() || checksum.is_some()).then(|| {
        quote_spanned! {at=>
            fn codec() -> &'static ::semel::ids::Codec {
                static CODEC: ::std::sync::LazyLock<::semel::ids::Codec> =
                    ::std::sync::LazyLock::new(|| ::semel::ids::Codec::new() #base62 #checksum);
                &CODEC
            }
        }
    });
    quote_spanned! {at=>
        #[automatically_derived]
        impl ::semel::ids::Resource for #item {
            const TYPE: ::semel::ids::ResourceType =
                ::semel::ids::ResourceType::new(#name, #prefix);
            #codec
        }
    }
}

/// Adds an error for a type that has fields, variants or parameters.
fn shape(item: &DeriveInput, errors: &mut Errors) {
    let ident = &item.ident;
    let empty = match &item.data {
        Data::Enum(data) => data.variants.is_empty(),
        Data::Struct(data) => matches!(data.fields, Fields::Unit),
        Data::Union(_) => false,
    };
    if !empty {
        let message = format!(
            "a resource type has no variants or fields: `enum {ident} {{}}` or `struct {ident};`; \
             its ids are `TypedId<{ident}>`"
        );
        errors.add(ident.span(), message);
    }
    if !item.generics.params.is_empty() {
        let message = "a resource has one name and one prefix, so it has no parameters";
        errors.add_at(&item.generics, message);
    }
}

/// One argument as it was written.
struct WrittenArgument {
    name: Ident,
    value: Option<Expr>,
}

impl Parse for WrittenArgument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.call(Ident::parse_any)?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        Ok(Self { name, value })
    }
}

/// The arguments that were parsed so far.
#[derive(Default)]
struct PartialArguments {
    name: Option<LitStr>,
    prefix: Option<LitStr>,
    checksum: bool,
    base62: bool,
}

impl PartialArguments {
    fn read(item: &DeriveInput, errors: &mut Errors) -> Self {
        let mut partial = Self::default();
        let mut seen: Vec<Ident> = Vec::new();
        let mut unread = false;
        let parse = |attribute: &Attribute| {
            attribute.parse_args_with(Punctuated::<WrittenArgument, Token![,]>::parse_terminated)
        };
        for attribute in item.attrs.iter().filter(|found| found.path().is_ident("resource")) {
            let Some(written) = errors.take(parse(attribute)) else {
                unread = true;
                continue;
            };
            for argument in written {
                if seen.contains(&argument.name) {
                    let message = format!("`{}` is given twice", argument.name);
                    errors.add(argument.name.span(), message);
                    continue;
                }
                seen.push(argument.name.clone());
                partial.fill(argument, errors);
            }
        }
        let missing = |name: &str| !unread && !seen.iter().any(|ident| ident == name);
        if missing("type") {
            let message = "`#[resource(type = \"ORDER\", …)]` is missing: the name under which \
                           its ids are stored in the map";
            errors.add(item.ident.span(), message);
        }
        if missing("prefix") {
            let message = "`#[resource(…, prefix = \"ord\")]` is missing: the text with which \
                           its public ids begin";
            errors.add(item.ident.span(), message);
        }
        partial
    }

    fn fill(&mut self, WrittenArgument { name, value }: WrittenArgument, errors: &mut Errors) {
        let at = name.span();
        match (name.to_string().as_str(), value) {
            ("type", Some(value)) => {
                let message = "a resource type is a capital and at most 31 capitals, digits and \
                               underscores, as in \"WALLET_ACCOUNT\"";
                self.name = text(&value, is_type, message, errors);
            }
            ("prefix", Some(value)) => {
                let message = "a prefix is a lower-case letter and 1 to 9 lower-case letters or \
                               digits, as in \"ord\"";
                self.prefix = text(&value, is_prefix, message, errors);
            }
            ("checksum", None) => self.checksum = true,
            ("base62", None) => self.base62 = true,
            (known @ ("checksum" | "base62"), Some(_)) => {
                errors.add(at, format!("`{known}` is a switch and takes no value"));
            }
            (known @ ("type" | "prefix"), None) => {
                errors.add(at, format!("`{known}` takes a value: `{known} = \"…\"`"));
            }
            (unknown, _) => {
                let known = KNOWN.join(", ");
                let message = format!("unknown argument `{unknown}`; the known ones are {known}");
                errors.add(at, message);
            }
        }
    }
}

/// Returns the string literal in `value`, and adds an error if it is not valid.
fn text(
    value: &Expr,
    fits: fn(&[u8]) -> bool,
    message: &str,
    errors: &mut Errors,
) -> Option<LitStr> {
    let Some(text) = literal(value) else {
        errors.add_at(value, "it is part of stored and public ids, so it must be a string literal");
        return None;
    };
    if !fits(text.value().as_bytes()) {
        errors.add(text.span(), message);
    }
    Some(text.clone())
}

fn is_type(name: &[u8]) -> bool {
    let rest = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    name.len() <= MAX_TYPE
        && name.first().is_some_and(u8::is_ascii_uppercase)
        && name.iter().all(rest)
}

fn is_prefix(prefix: &[u8]) -> bool {
    let rest = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (2..=MAX_PREFIX).contains(&prefix.len())
        && prefix.first().is_some_and(u8::is_ascii_lowercase)
        && prefix.iter().all(rest)
}

#[cfg(test)]
mod tests {
    use semel::ids::resource::{InvalidResource, ResourceType};

    use super::*;

    #[test]
    fn the_macro_and_the_ids_crate_refuse_the_same_names_and_prefixes() {
        let long = "A".repeat(33);
        let names = ["ORDER", "A", "A_1", &long[..32], &long, "", "_A", "1A", "order", "Ö", "A-B"];
        let prefixes =
            ["ord", "o1", "abcdefghij", "abcdefghijk", "o", "", "1o", "Ord", "o_d", "öd"];
        for name in names {
            let refused = matches!(ResourceType::parse(name, "ord"), Err(InvalidResource::Name));
            assert_eq!(is_type(name.as_bytes()), !refused, "{name}");
        }
        for prefix in prefixes {
            let taken = ResourceType::parse("ORDER", prefix).is_ok();
            assert_eq!(is_prefix(prefix.as_bytes()), taken, "{prefix}");
        }
    }
}
