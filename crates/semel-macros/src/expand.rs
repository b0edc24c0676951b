//! Expands an idempotent function into a call of the executor, with the function's body as the
//! work.
//!
//! The expressions of the attribute are evaluated in the caller's future, before the work starts,
//! so they may borrow; the work owns the values that it uses. Generated names have the macro's
//! hygiene, so they cannot collide with names in the body.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Block, Expr, Ident, ItemFn, Stmt, Token};

use crate::arguments::{Arguments, FingerprintSource};
use crate::body;
use crate::errors::Errors;
use crate::signature::{self, Answer, Borrowed, SelfKind};

/// Returns the generated function, with the signature of the original one.
pub(crate) fn expand(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let mut function = match syn::parse2::<ItemFn>(function) {
        Ok(function) => function,
        Err(error) => {
            let message = "`#[idempotent]` goes on an `async fn` with a body";
            return syn::Error::new(error.span(), message).into_compile_error();
        }
    };
    let mut errors = Errors::default();
    let arguments = Arguments::parse(arguments, &function.sig.ident, &mut errors);
    let work = Work::read(&function, &mut errors);
    for name in arguments.iter().flat_map(|given| [&given.context, &given.unit]).flatten() {
        signature::not_a_parameter(&function.sig, name, &mut errors);
    }
    let errors = errors.into_tokens();
    let statements = match (&errors, arguments, work) {
        (None, Some(arguments), Some(work)) => call(&arguments, &work),
        // The signature is kept, so that an error in the attribute does not cause errors in every
        // caller.
        _ => {
            function.attrs.push(syn::parse_quote!(#[allow(unused, clippy::unused_async)]));
            quote!(::core::unreachable!())
        }
    };
    function.block.stmts = vec![Stmt::Expr(Expr::Verbatim(statements), None)];
    let function = function.into_token_stream();
    quote!(#function #errors)
}

/// The body of the function, as work that may outlive its caller.
struct Work {
    body: Block,
    answer: Answer,
    self_value: Option<ClonedSelf>,
}

/// The clone of `self` that the work owns if the function borrows `self`.
struct ClonedSelf {
    /// The variable of the body that contains the clone.
    name: Ident,
    /// The function's `self`, which is cloned.
    of: Token![self],
    /// The type that `self` refers to.
    owned: TokenStream,
}

impl Work {
    fn read(function: &ItemFn, errors: &mut Errors) -> Option<Self> {
        let ItemFn { sig, block, .. } = function;
        if sig.asyncness.is_none() {
            let message = "`#[idempotent]` needs an `async fn`: it waits for the ledger";
            errors.add(sig.fn_token.span, message);
        }
        if body::is_instrumented(block) {
            let message = "put `#[idempotent]` above `#[instrument]`, so that it comes first";
            errors.add(sig.ident.span(), message);
            return None;
        }
        for Borrowed { name, written } in signature::borrowed(sig) {
            if body::uses(block, &name) {
                let message = format!(
                    "the work outlives the caller, so its body cannot use the borrowed `{name}`: \
                     take it by value, or use it in the attribute only"
                );
                errors.add_at(written, message);
            }
        }
        let answer = errors.take(signature::answer(sig));
        let self_kind = errors.take(signature::self_kind(sig))?;
        let mut body = Block::clone(block);
        let self_value = match self_kind {
            SelfKind::Owned => None,
            SelfKind::Borrowed { owned, token: of } => {
                let name = Ident::new("__semel_self", Span::mixed_site().located_at(of.span));
                body::rename_self(&mut body, &name).then_some(ClonedSelf { name, of, owned })
            }
        };
        Some(Self { body, answer: answer?, self_value })
    }
}

/// Returns the statements of the generated function.
fn call(arguments: &Arguments, work: &Work) -> TokenStream {
    let Work { body, answer: Answer { work: result, whole, span }, self_value } = work;
    let here = Span::mixed_site().located_at(*span);
    let command = command(arguments);
    let executor = executor(&arguments.executor);
    let clone = self_value.iter().map(|ClonedSelf { name, of, owned }| {
        quote_spanned!(name.span()=> let #name = <#owned as ::core::clone::Clone>::clone(#of);)
    });
    let borrow = self_value.iter().map(
        |ClonedSelf { name, owned, .. }| quote_spanned!(name.span()=> let #name: &#owned = &#name;),
    );
    let EntryPoint { method, held, bindings } = EntryPoint::of(arguments, here);
    let statements = &body.stmts;
    // The unreachable code gives the compiler the type of the body before it checks the body, so
    // that a type error is reported at its place.
    let answer = quote_spanned! {here=>
        __semel_executor.#method(__semel_command, move |__semel_held: #held| async move {
            #[allow(unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop)]
            if false {
                let __semel_result: #result = loop {};
                return __semel_result;
            }
            #(#borrow)*
            #bindings
            #(#statements)*
        }).await
    };
    let answer = match whole {
        true => answer,
        false => quote_spanned! {here=>
            #answer?.into_value().ok_or(::semel::Error::Concurrent)
        },
    };
    let at = Span::mixed_site();
    quote_spanned! {at=>
        let __semel_command = #command;
        let __semel_executor = #executor;
        #(#clone)*
        #answer
    }
}

/// The method of the executor that runs the work, and the argument of the work.
struct EntryPoint {
    method: Ident,
    /// The type of the work's argument.
    held: TokenStream,
    /// The statements that bind the argument to the variables of the body.
    bindings: TokenStream,
}

impl EntryPoint {
    fn of(arguments: &Arguments, here: Span) -> Self {
        let at = Span::mixed_site();
        let context = arguments.context.iter();
        match &arguments.unit {
            None => Self {
                method: Ident::new("run", here),
                held: quote_spanned!(at=> ::semel::Context),
                bindings: quote_spanned!(at=> #(let #context = __semel_held;)*),
            },
            Some(unit) => Self {
                method: Ident::new("transact", at.located_at(unit.span())),
                held: quote_spanned!(at=> ::semel::executor::Unit<_>),
                bindings: quote_spanned! {at=>
                    #(let #context = ::core::clone::Clone::clone(__semel_held.context());)*
                    #[allow(unused_mut)]
                    let mut #unit = __semel_held;
                },
            },
        }
    }
}

/// Returns an expression that clones the executor, so that the call borrows nothing that the work
/// owns.
fn executor(given: &Expr) -> TokenStream {
    let at = Span::mixed_site().located_at(given.span());
    quote_spanned!(at=> <::semel::Executor<_> as ::core::clone::Clone>::clone(&(#given)))
}

/// Returns an expression of type `semel::Command`, which may return from the function with `?`.
fn command(arguments: &Arguments) -> TokenStream {
    let Arguments { operation, tenant, key, fingerprint, principal, settings, .. } = arguments;
    let at = Span::mixed_site();
    let principal = principal.iter().map(|principal| {
        let at = at.located_at(principal.span());
        quote_spanned!(at=> .with_principal(::semel::Principal::of(&(#principal))))
    });
    let text = |part: &Expr| {
        let at = at.located_at(part.span());
        quote_spanned!(at=> ::core::convert::AsRef::<str>::as_ref(&(#part)))
    };
    let (tenant, key) = (text(tenant), text(key));
    let fingerprint = match fingerprint {
        FingerprintSource::Fields(fields) => {
            fields.fingerprint().map(|made| quote_spanned!(at=> #made?))
        }
        FingerprintSource::Given(fingerprint) => Some(fingerprint.to_token_stream()),
    };
    let fingerprint = fingerprint.iter();
    quote_spanned! {at=>
        ::semel::Command::new(
            ::semel::Key::command(
                #tenant,
                #operation,
                #key,
            )? #(#principal)*
        )
        #(.fingerprint(#fingerprint))*
        #(#settings)*
    }
}
