//! Parses the arguments of `#[idempotent(…)]`.
//!
//! Names and values are validated here, as far as the compiler cannot do it;
//! [`expand`](crate::expand) generates the code.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitStr, Token, parenthesized};

use crate::errors::Errors;
use crate::expression::{literal, ungrouped};
use crate::fields::Fields;
use crate::setting::{self, Setting};

/// Every argument, in the order in which the documentation lists them.
const KNOWN: [&str; 20] = [
    "operation",
    "executor",
    "tenant",
    "key",
    "fields",
    "fingerprint",
    "principal",
    "context",
    "unit",
    "claim_first",
    "wait",
    "woken",
    "keep",
    "lease",
    "work_timeout",
    "on_failure",
    "on_crash",
    "verify",
    "max_attempts",
    "max_outcome",
];

/// The longest operation, tenant and key, in bytes: the limits of `semel::key`.
const MAX_SCOPE: usize = 128;
const MAX_TENANT: usize = 64;
const MAX_ID: usize = 255;

/// The validated arguments.
pub(crate) struct Arguments {
    pub(crate) operation: LitStr,
    pub(crate) executor: Expr,
    pub(crate) tenant: Expr,
    pub(crate) key: Expr,
    pub(crate) fingerprint: FingerprintSource,
    pub(crate) principal: Option<Expr>,
    /// The variable of the body that contains its `Context`.
    pub(crate) context: Option<Ident>,
    /// The variable of the body that contains its `Unit`. If it is set, the work runs in a
    /// transaction.
    pub(crate) unit: Option<Ident>,
    pub(crate) settings: Vec<Setting>,
}

/// The source of the command's fingerprint.
pub(crate) enum FingerprintSource {
    Fields(Fields),
    Given(Expr),
}

/// One argument as it was written.
struct WrittenArgument {
    name: Ident,
    value: Value,
}

enum Value {
    /// The argument was written as `name = value`.
    Given(Expr),
    /// The argument was written as `name(…)`.
    Listed(TokenStream),
    /// The argument was written as `name`.
    Bare,
}

impl Parse for WrittenArgument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.call(Ident::parse_any)?;
        let value = if input.peek(syn::token::Paren) {
            let listed;
            parenthesized!(listed in input);
            Value::Listed(listed.parse()?)
        } else if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            if name == "unit" {
                // The unit is always mutable, so `mut` is allowed and has no effect.
                input.parse::<Option<Token![mut]>>()?;
            }
            Value::Given(input.parse()?)
        } else {
            Value::Bare
        };
        Ok(Self { name, value })
    }
}

/// The arguments that were parsed so far.
#[derive(Default)]
struct PartialArguments {
    operation: Option<LitStr>,
    executor: Option<Expr>,
    tenant: Option<Expr>,
    key: Option<Expr>,
    fingerprint: Option<FingerprintSource>,
    principal: Option<Expr>,
    context: Option<Ident>,
    unit: Option<Ident>,
    settings: Vec<Setting>,
}

impl Arguments {
    /// Parses the arguments of the attribute on `function`. Adds every error to `errors`, and
    /// returns `None` if a required argument is missing or not valid.
    pub(crate) fn parse(
        tokens: TokenStream,
        function: &Ident,
        errors: &mut Errors,
    ) -> Option<Self> {
        let parser = Punctuated::<WrittenArgument, Token![,]>::parse_terminated;
        let written = errors.take(parser.parse2(tokens))?;
        let mut partial = PartialArguments::default();
        let mut seen: Vec<Ident> = Vec::new();
        for argument in written {
            if seen.contains(&argument.name) {
                let message = format!("`{}` is given twice", argument.name);
                errors.add(argument.name.span(), message);
                continue;
            }
            seen.push(argument.name.clone());
            partial.fill(argument, errors);
        }
        let given = |name: &str| seen.iter().find(|ident| *ident == name).map(Ident::span);
        check_required(function.span(), &given, errors);
        check_exclusive(&given, errors);
        partial.close()
    }
}

impl PartialArguments {
    fn fill(&mut self, WrittenArgument { name, value }: WrittenArgument, errors: &mut Errors) {
        let at = name.span();
        match (name.to_string().as_str(), value) {
            ("operation", Value::Given(value)) => {
                match literal(&value) {
                    Some(text) => self.operation = Some(text.clone()),
                    None => errors.add_at(
                        &value,
                        "the operation is part of every stored key, so it must be a string literal",
                    ),
                }
                check_key_part("operation", MAX_SCOPE, &value, errors);
            }
            ("tenant", Value::Given(value)) => {
                check_key_part("tenant", MAX_TENANT, &value, errors);
                self.tenant = Some(value);
            }
            ("key", Value::Given(value)) => {
                check_key_part("key", MAX_ID, &value, errors);
                self.key = Some(value);
            }
            ("executor", Value::Given(value)) => self.executor = Some(value),
            ("principal", Value::Given(value)) => self.principal = Some(value),
            ("fingerprint", Value::Given(value)) => {
                self.fingerprint = Some(FingerprintSource::Given(value))
            }
            ("fields", Value::Listed(tokens)) => {
                self.fingerprint = Some(FingerprintSource::Fields(Fields::parse(tokens, errors)));
            }
            ("fields", Value::Given(_) | Value::Bare) => errors.add(
                at,
                "fields are listed: `fields(request.sku, amount = request.cents)`; `fields()` if \
                 the key alone decides",
            ),
            ("context", Value::Given(value)) => self.context = binding(&name, &value, errors),
            ("unit", Value::Given(value)) => self.unit = binding(&name, &value, errors),
            ("claim_first", Value::Bare) => self.settings.push(Setting::flag(name)),
            ("claim_first", Value::Given(_) | Value::Listed(_)) => {
                errors.add(at, "`claim_first` is a switch and takes no value");
            }
            (known, Value::Given(value)) if KNOWN.contains(&known) => {
                self.settings.extend(errors.take(setting::parse(name, value)));
            }
            (known, _) if KNOWN.contains(&known) => {
                errors.add(at, format!("`{known}` takes a value: `{known} = …`"));
            }
            (unknown, _) => {
                let message = format!(
                    "unknown argument `{unknown}`; the known ones are {}",
                    KNOWN.join(", ")
                );
                errors.add(at, message);
            }
        }
    }

    fn close(self) -> Option<Arguments> {
        Some(Arguments {
            operation: self.operation?,
            executor: self.executor?,
            tenant: self.tenant?,
            key: self.key?,
            fingerprint: self.fingerprint?,
            principal: self.principal,
            context: self.context,
            unit: self.unit,
            settings: self.settings,
        })
    }
}

/// Adds an error for every required argument that is missing.
fn check_required(at: Span, given: &dyn Fn(&str) -> Option<Span>, errors: &mut Errors) {
    const REQUIRED: [(&str, &str); 4] = [
        (
            "operation",
            "`operation = \"CREATE_ORDER\"` is missing: the name of the operation, which is part of \
             its keys",
        ),
        (
            "executor",
            "`executor = …` is missing: the `semel::Executor` that runs it, as in `self.executor`",
        ),
        (
            "tenant",
            "`tenant = …` is missing: the tenant of the keys; a literal if there is only one tenant",
        ),
        ("key", "`key = …` is missing: the caller's idempotency key, as in `request.key`"),
    ];
    for (_, message) in REQUIRED.iter().filter(|(name, _)| given(name).is_none()) {
        errors.add(at, message);
    }
    if given("fields").or(given("fingerprint")).is_none() {
        errors.add(
            at,
            "`fields(…)` is missing: the values that make two requests with one key the same, as in \
             `fields(request.sku)`; `fields()` if the key alone decides",
        );
    }
}

/// Adds an error for arguments that exclude each other.
fn check_exclusive(given: &dyn Fn(&str) -> Option<Span>, errors: &mut Errors) {
    if let (Some(_), Some(second)) = (given("fields"), given("fingerprint")) {
        errors.add(
            second,
            "`fingerprint` and `fields` both set the fingerprint; give only one of them",
        );
    }
    if let (Some(_), Some(second)) = (given("on_crash"), given("verify")) {
        errors.add(second, "`verify` is a crash policy of its own; leave `on_crash` out");
    }
    match (given("unit"), given("claim_first")) {
        (None, Some(at)) => errors.add(
            at,
            "`claim_first` applies to transactions; outside them the claim is always committed \
             first. For a transaction add `unit = unit`",
        ),
        (Some(_), None) => {
            if let Some(at) = given("verify") {
                errors.add(
                    at,
                    "after a crash a transaction leaves nothing to verify; add `claim_first`",
                );
            }
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
}

/// Validates a part of the key if it is a literal, like `semel::Key` does at run time.
fn check_key_part(name: &str, max: usize, value: &Expr, errors: &mut Errors) {
    let Some(literal) = literal(value) else { return };
    let text = literal.value();
    if text.trim().is_empty() {
        errors.add(literal.span(), format!("the {name} is blank"));
    } else if text.len() > max {
        let message = format!("the {name} has {} bytes, at most {max} are allowed", text.len());
        errors.add(literal.span(), message);
    } else if text.contains(char::is_control) {
        errors.add(literal.span(), format!("the {name} has a control character"));
    }
}

/// Returns the identifier that an argument such as `context = claim` contains.
fn binding(name: &Ident, value: &Expr, errors: &mut Errors) -> Option<Ident> {
    if let Expr::Path(path) = ungrouped(value)
        && let Some(ident) = path.path.get_ident()
    {
        return Some(ident.clone());
    }
    errors.add_at(value, format!("`{name}` takes one identifier: the name that the body uses"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_keys() {
        use semel::key;
        assert_eq!((MAX_SCOPE, MAX_TENANT, MAX_ID), (key::MAX_SCOPE, key::MAX_TENANT, key::MAX_ID));
    }
}
