//! `#[derive(Resource)]`: a resource type with public ids.
//!
//! Name and prefix are validated here, because the compiler evaluates the constants of `semel-ids` only where
//! they are used.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Data, DeriveInput, Expr, Fields, Ident, LitStr, Token};

use crate::complaints::Complaints;
use crate::expression::literal;

/// Every argument, in the order in which the documentation lists them.
const KNOWN: [&str; 4] = ["type", "prefix", "checksum", "base62"];

/// Longest name and prefix: `semel::ids`' limits.
const MAX_TYPE: usize = 32;
const MAX_PREFIX: usize = 10;

/// Returns the implementation of `semel::ids::Resource`.
pub(crate) fn expand(item: TokenStream) -> TokenStream {
    let item = match syn::parse2::<DeriveInput>(item) {
        Ok(item) => item,
        Err(error) => return error.into_compile_error(),
    };
    let mut complaints = Complaints::default();
    shape(&item, &mut complaints);
    let slots = Slots::read(&item, &mut complaints);
    match (complaints.into_tokens(), slots) {
        (None, Slots { name: Some(name), prefix: Some(prefix), checksum, base62 }) => {
            implementation(&item.ident, &name, &prefix, checksum, base62)
        }
        (complaints, _) => complaints.unwrap_or_default(),
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
fn shape(item: &DeriveInput, complaints: &mut Complaints) {
    let ident = &item.ident;
    let empty = match &item.data {
        Data::Enum(data) => data.variants.is_empty(),
        Data::Struct(data) => matches!(data.fields, Fields::Unit),
        Data::Union(_) => false,
    };
    if !empty {
        let message = format!(
            "a resource is a name and holds nothing: `enum {ident} {{}}` or `struct {ident};`; \
             its ids are `TypedId<{ident}>`"
        );
        complaints.add(ident.span(), message);
    }
    if !item.generics.params.is_empty() {
        let message = "a resource has one name and one prefix, so it has no parameters";
        complaints.add_at(&item.generics, message);
    }
}

/// One argument.
struct Written {
    name: Ident,
    value: Option<Expr>,
}

impl Parse for Written {
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
struct Slots {
    name: Option<LitStr>,
    prefix: Option<LitStr>,
    checksum: bool,
    base62: bool,
}

impl Slots {
    fn read(item: &DeriveInput, complaints: &mut Complaints) -> Self {
        let mut slots = Self::default();
        let mut seen: Vec<Ident> = Vec::new();
        let mut unread = false;
        let parse = |attribute: &Attribute| {
            attribute.parse_args_with(Punctuated::<Written, Token![,]>::parse_terminated)
        };
        for attribute in item.attrs.iter().filter(|found| found.path().is_ident("resource")) {
            let Some(written) = complaints.take(parse(attribute)) else {
                unread = true;
                continue;
            };
            for argument in written {
                if seen.contains(&argument.name) {
                    let message = format!("`{}` is given twice", argument.name);
                    complaints.add(argument.name.span(), message);
                    continue;
                }
                seen.push(argument.name.clone());
                slots.fill(argument, complaints);
            }
        }
        let missing = |name: &str| !unread && !seen.iter().any(|ident| ident == name);
        if missing("type") {
            let message = "`#[resource(type = \"ORDER\", …)]` is missing: the name under which its \
                           ids are kept in the map";
            complaints.add(item.ident.span(), message);
        }
        if missing("prefix") {
            let message = "`#[resource(…, prefix = \"ord\")]` is missing: what its public ids \
                           begin with";
            complaints.add(item.ident.span(), message);
        }
        slots
    }

    fn fill(&mut self, Written { name, value }: Written, complaints: &mut Complaints) {
        let at = name.span();
        match (name.to_string().as_str(), value) {
            ("type", Some(value)) => {
                let message = "a resource type is a capital and at most 31 capitals, digits and \
                               underscores, as in \"WALLET_ACCOUNT\"";
                self.name = text(&value, is_type, message, complaints);
            }
            ("prefix", Some(value)) => {
                let message = "a prefix is a lower-case letter and 1 to 9 lower-case letters or \
                               digits, as in \"ord\"";
                self.prefix = text(&value, is_prefix, message, complaints);
            }
            ("checksum", None) => self.checksum = true,
            ("base62", None) => self.base62 = true,
            (known @ ("checksum" | "base62"), Some(_)) => {
                complaints.add(at, format!("`{known}` is a switch and takes no value"));
            }
            (known @ ("type" | "prefix"), None) => {
                complaints.add(at, format!("`{known}` takes a value: `{known} = \"…\"`"));
            }
            (unknown, _) => {
                let known = KNOWN.join(", ");
                let message = format!("unknown argument `{unknown}`; the known ones are {known}");
                complaints.add(at, message);
            }
        }
    }
}

/// Returns the string literal in `value`, validated.
fn text(
    value: &Expr,
    fits: fn(&[u8]) -> bool,
    message: &str,
    complaints: &mut Complaints,
) -> Option<LitStr> {
    let Some(text) = literal(value) else {
        complaints.add_at(value, "ids are kept and given out under it, so it is a string literal");
        return None;
    };
    if !fits(text.value().as_bytes()) {
        complaints.add(text.span(), message);
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
    fn the_macro_refuses_what_the_ids_crate_refuses() {
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
