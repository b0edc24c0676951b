//! Expands an idempotent function into a command, with its body as the work of that command.
//!
//! The expressions of the attribute are evaluated in the caller's future, before the work starts, so they may
//! borrow; the work owns what it uses. Generated names cannot collide with those of the body: they have the
//! macro's hygiene.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Block, Expr, Ident, ItemFn, Stmt, Token};

use crate::arguments::{Arguments, Sameness};
use crate::body;
use crate::complaints::Complaints;
use crate::signature::{self, Answer, Borrowed, Me};

/// Returns the function that callers call.
pub(crate) fn expand(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let mut function = match syn::parse2::<ItemFn>(function) {
        Ok(function) => function,
        Err(error) => {
            let message = "`#[idempotent]` goes on an `async fn` with a body";
            return syn::Error::new(error.span(), message).into_compile_error();
        }
    };
    let mut complaints = Complaints::default();
    let arguments = Arguments::parse(arguments, &function.sig.ident, &mut complaints);
    let work = Work::read(&function, &mut complaints);
    for name in arguments.iter().flat_map(|given| [&given.context, &given.unit]).flatten() {
        signature::not_a_parameter(&function.sig, name, &mut complaints);
    }
    let complaints = complaints.into_tokens();
    let statements = match (&complaints, arguments, work) {
        (None, Some(arguments), Some(work)) => call(&arguments, &work),
        // The signature stays, so that one error here does not cause errors at every caller.
        _ => {
            function.attrs.push(syn::parse_quote!(#[allow(unused, clippy::unused_async)]));
            quote!(::core::unreachable!())
        }
    };
    function.block.stmts = vec![Stmt::Expr(Expr::Verbatim(statements), None)];
    let function = function.into_token_stream();
    quote!(#function #complaints)
}

/// The body of the function as work that may outlive its caller.
struct Work {
    body: Block,
    answer: Answer,
    me: Option<OwnSelf>,
}

/// The body's own clone of what `self` borrows.
struct OwnSelf {
    /// The body's name for it.
    name: Ident,
    /// The function's `self`.
    of: Token![self],
    /// What `self` refers to.
    owned: TokenStream,
}

impl Work {
    fn read(function: &ItemFn, complaints: &mut Complaints) -> Option<Self> {
        let ItemFn { sig, block, .. } = function;
        if sig.asyncness.is_none() {
            let message = "`#[idempotent]` needs an `async fn`: it waits for the ledger";
            complaints.add(sig.fn_token.span, message);
        }
        if body::is_instrumented(block) {
            let message = "put `#[idempotent]` above `#[instrument]`, so that it comes first";
            complaints.add(sig.ident.span(), message);
            return None;
        }
        for Borrowed { name, written } in signature::borrowed(sig) {
            if body::uses(block, &name) {
                let message = format!(
                    "the work outlives the caller, so its body cannot use the borrowed `{name}`: \
                     take it by value, or use it in the attribute only"
                );
                complaints.add_at(written, message);
            }
        }
        let answer = complaints.take(signature::answer(sig));
        let me = complaints.take(signature::me(sig))?;
        let mut body = Block::clone(block);
        let me = match me {
            Me::Owned => None,
            Me::Borrowed { owned, token: of } => {
                let name = Ident::new("__semel_self", Span::mixed_site().located_at(of.span));
                body::rename_self(&mut body, &name).then_some(OwnSelf { name, of, owned })
            }
        };
        Some(Self { body, answer: answer?, me })
    }
}

/// Returns the statements of the function that callers call.
fn call(arguments: &Arguments, work: &Work) -> TokenStream {
    let Work { body, answer: Answer { work: result, whole, span }, me } = work;
    let here = Span::mixed_site().located_at(*span);
    let command = command(arguments);
    let executor = executor(&arguments.executor);
    let clone = me.iter().map(|OwnSelf { name, of, owned }| {
        quote_spanned!(name.span()=> let #name = <#owned as ::core::clone::Clone>::clone(#of);)
    });
    let borrow = me.iter().map(
        |OwnSelf { name, owned, .. }| quote_spanned!(name.span()=> let #name: &#owned = &#name;),
    );
    let EntryPoint { method, held, bindings } = EntryPoint::of(arguments, here);
    let statements = &body.stmts;
    // The unreachable code gives the compiler the type of the body before the body, so that a type error is
    // reported where it is.
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
    /// Binds the argument to the body's names for it.
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

/// Returns a clone of the executor, so that the call borrows nothing that the work owns.
fn executor(given: &Expr) -> TokenStream {
    let at = Span::mixed_site().located_at(given.span());
    quote_spanned!(at=> <::semel::Executor<_> as ::core::clone::Clone>::clone(&(#given)))
}

/// Returns an expression of type `semel::Command`, which may return from the function by `?`.
fn command(arguments: &Arguments) -> TokenStream {
    let Arguments { operation, tenant, key, sameness, principal, settings, .. } = arguments;
    let at = Span::mixed_site();
    let principal = principal.iter().map(|principal| {
        let at = at.located_at(principal.span());
        quote_spanned!(at=> .principal(::semel::Principal::of(&(#principal))))
    });
    let text = |part: &Expr| {
        let at = at.located_at(part.span());
        quote_spanned!(at=> ::core::convert::AsRef::<str>::as_ref(&(#part)))
    };
    let (tenant, key) = (text(tenant), text(key));
    let fingerprint = match sameness {
        Sameness::Fields(fields) => fields.fingerprint().map(|made| quote_spanned!(at=> #made?)),
        Sameness::Given(fingerprint) => Some(fingerprint.to_token_stream()),
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
