//! The arguments of `#[idempotent(…)]`.
//!
//! Names and values are parsed and validated here, as far as the compiler cannot; [`expand`](crate::expand)
//! makes code of them.

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, LitStr, Token, parenthesized};

use crate::complaints::Complaints;
use crate::expression::{bare, literal};
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

/// Longest operation, tenant and key, in bytes: `semel::key`'s limits.
const MAX_SCOPE: usize = 128;
const MAX_TENANT: usize = 64;
const MAX_ID: usize = 255;

/// The arguments, validated.
pub(crate) struct Arguments {
    pub(crate) operation: LitStr,
    pub(crate) executor: Expr,
    pub(crate) tenant: Expr,
    pub(crate) key: Expr,
    pub(crate) sameness: Sameness,
    pub(crate) principal: Option<Expr>,
    /// The body's name for its `Context`.
    pub(crate) context: Option<Ident>,
    /// The body's name for its `Unit`; if there is one, the work is a transaction.
    pub(crate) unit: Option<Ident>,
    pub(crate) settings: Vec<Setting>,
}

/// What makes two requests the same.
pub(crate) enum Sameness {
    Fields(Fields),
    Given(Expr),
}

/// One argument.
struct Written {
    name: Ident,
    value: Value,
}

enum Value {
    /// `name = value`.
    Given(Expr),
    /// `name(…)`.
    Listed(TokenStream),
    /// `name`.
    Bare,
}

impl Parse for Written {
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
struct Slots {
    operation: Option<LitStr>,
    executor: Option<Expr>,
    tenant: Option<Expr>,
    key: Option<Expr>,
    sameness: Option<Sameness>,
    principal: Option<Expr>,
    context: Option<Ident>,
    unit: Option<Ident>,
    settings: Vec<Setting>,
}

impl Arguments {
    /// Parses the arguments of the function `function`. Returns `None` if something essential is missing, with
    /// every error added to `complaints`.
    pub(crate) fn parse(
        tokens: TokenStream,
        function: &Ident,
        complaints: &mut Complaints,
    ) -> Option<Self> {
        let parser = Punctuated::<Written, Token![,]>::parse_terminated;
        let written = complaints.take(parser.parse2(tokens))?;
        let mut slots = Slots::default();
        let mut seen: Vec<Ident> = Vec::new();
        for argument in written {
            if seen.contains(&argument.name) {
                let message = format!("`{}` is given twice", argument.name);
                complaints.add(argument.name.span(), message);
                continue;
            }
            seen.push(argument.name.clone());
            slots.fill(argument, complaints);
        }
        let given = |name: &str| seen.iter().find(|ident| *ident == name).map(Ident::span);
        needed(function.span(), &given, complaints);
        disagreements(&given, complaints);
        slots.close()
    }
}

impl Slots {
    fn fill(&mut self, Written { name, value }: Written, complaints: &mut Complaints) {
        let at = name.span();
        match (name.to_string().as_str(), value) {
            ("operation", Value::Given(value)) => {
                match literal(&value) {
                    Some(text) => self.operation = Some(text.clone()),
                    None => complaints.add_at(
                        &value,
                        "the operation is part of every stored key, so it is a string literal",
                    ),
                }
                part("operation", MAX_SCOPE, &value, complaints);
            }
            ("tenant", Value::Given(value)) => {
                part("tenant", MAX_TENANT, &value, complaints);
                self.tenant = Some(value);
            }
            ("key", Value::Given(value)) => {
                part("key", MAX_ID, &value, complaints);
                self.key = Some(value);
            }
            ("executor", Value::Given(value)) => self.executor = Some(value),
            ("principal", Value::Given(value)) => self.principal = Some(value),
            ("fingerprint", Value::Given(value)) => self.sameness = Some(Sameness::Given(value)),
            ("fields", Value::Listed(tokens)) => {
                self.sameness = Some(Sameness::Fields(Fields::parse(tokens, complaints)));
            }
            ("fields", Value::Given(_) | Value::Bare) => complaints.add(
                at,
                "fields are listed: `fields(request.sku, amount = request.cents)`; `fields()` if \
                 the key alone decides",
            ),
            ("context", Value::Given(value)) => self.context = binding(&name, &value, complaints),
            ("unit", Value::Given(value)) => self.unit = binding(&name, &value, complaints),
            ("claim_first", Value::Bare) => self.settings.push(Setting::flag(name)),
            ("claim_first", Value::Given(_) | Value::Listed(_)) => {
                complaints.add(at, "`claim_first` is a switch and takes no value");
            }
            (known, Value::Given(value)) if KNOWN.contains(&known) => {
                self.settings.extend(complaints.take(setting::parse(name, value)));
            }
            (known, _) if KNOWN.contains(&known) => {
                complaints.add(at, format!("`{known}` takes a value: `{known} = …`"));
            }
            (unknown, _) => {
                let message = format!(
                    "unknown argument `{unknown}`; the known ones are {}",
                    KNOWN.join(", ")
                );
                complaints.add(at, message);
            }
        }
    }

    fn close(self) -> Option<Arguments> {
        Some(Arguments {
            operation: self.operation?,
            executor: self.executor?,
            tenant: self.tenant?,
            key: self.key?,
            sameness: self.sameness?,
            principal: self.principal,
            context: self.context,
            unit: self.unit,
            settings: self.settings,
        })
    }
}

/// Adds an error for every argument that is required and was left out.
fn needed(at: Span, given: &dyn Fn(&str) -> Option<Span>, complaints: &mut Complaints) {
    const NEEDED: [(&str, &str); 4] = [
        ("operation", "`operation = \"CREATE_ORDER\"` is missing: the name under which keys count"),
        (
            "executor",
            "`executor = …` is missing: the `semel::Executor` that runs it, as in `self.executor`",
        ),
        (
            "tenant",
            "`tenant = …` is missing: whose keys these are; a literal if there is only one tenant",
        ),
        ("key", "`key = …` is missing: the caller's idempotency key, as in `request.key`"),
    ];
    for (_, message) in NEEDED.iter().filter(|(name, _)| given(name).is_none()) {
        complaints.add(at, message);
    }
    if given("fields").or(given("fingerprint")).is_none() {
        complaints.add(
            at,
            "`fields(…)` is missing: what makes two requests with one key the same, as in \
             `fields(request.sku)`; `fields()` if the key alone decides",
        );
    }
}

/// Adds an error for arguments that exclude each other.
fn disagreements(given: &dyn Fn(&str) -> Option<Span>, complaints: &mut Complaints) {
    if let (Some(_), Some(second)) = (given("fields"), given("fingerprint")) {
        complaints.add(second, "`fingerprint` and `fields` say the same thing; give one of them");
    }
    if let (Some(_), Some(second)) = (given("on_crash"), given("verify")) {
        complaints.add(second, "`verify` is a crash policy of its own; leave `on_crash` out");
    }
    match (given("unit"), given("claim_first")) {
        (None, Some(at)) => complaints.add(
            at,
            "`claim_first` is about transactions; outside them the claim always comes first. For \
             a transaction name its unit: `unit = unit`",
        ),
        (Some(_), None) => {
            if let Some(at) = given("verify") {
                complaints.add(
                    at,
                    "after a crash a transaction leaves nothing to verify; add `claim_first`",
                );
            }
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
}

/// Validates a part of the key that is a literal, as `semel::Key` does when the function is called.
fn part(name: &str, max: usize, value: &Expr, complaints: &mut Complaints) {
    let Some(literal) = literal(value) else { return };
    let text = literal.value();
    if text.trim().is_empty() {
        complaints.add(literal.span(), format!("the {name} is blank"));
    } else if text.len() > max {
        let message = format!("the {name} has {} bytes, at most {max} are allowed", text.len());
        complaints.add(literal.span(), message);
    } else if text.contains(char::is_control) {
        complaints.add(literal.span(), format!("the {name} has a control character"));
    }
}

/// Returns the name that the body uses.
fn binding(name: &Ident, value: &Expr, complaints: &mut Complaints) -> Option<Ident> {
    if let Expr::Path(path) = bare(value)
        && let Some(ident) = path.path.get_ident()
    {
        return Some(ident.clone());
    }
    complaints.add_at(value, format!("`{name}` takes the name that the body uses, and no more"));
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
