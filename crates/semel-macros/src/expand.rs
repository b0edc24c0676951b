//! What an idempotent function becomes: a command, and its body as the work of that command.
//!
//! Everything that the attribute mentions is read before the work is handed over, in the caller's
//! own future, so it may borrow; the work owns what it uses. Names of ours cannot meet names of the
//! body: they have the macro's own hygiene.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Block, Expr, Ident, ItemFn, Stmt, Token};

use crate::arguments::{Arguments, Sameness};
use crate::body;
use crate::complaints::Complaints;
use crate::signature::{self, Answer, Borrowed, Me};

/// The function that callers call.
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
        // The signature stays, so that one mistake here is not a dozen at the callers'.
        _ => {
            function.attrs.push(syn::parse_quote!(#[allow(unused, clippy::unused_async)]));
            quote!(::core::unreachable!())
        }
    };
    function.block.stmts = vec![Stmt::Expr(Expr::Verbatim(statements), None)];
    let function = function.into_token_stream();
    quote!(#function #complaints)
}

/// The function's own code, ready to outlive its caller.
struct Work {
    body: Block,
    answer: Answer,
    me: Option<OwnSelf>,
}

/// The body's own copy of what `self` borrows.
struct OwnSelf {
    /// What the body calls it now.
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

/// The statements of the function that callers call.
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
    let Door { method, held, bindings } = Door::of(arguments, here);
    let statements = &body.stmts;
    // What is never reached tells the compiler what the body gives before it reads the body, so that
    // a mistake is shown where it was made.
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

/// Which of the executor's doors the work goes through, and what it is handed there.
struct Door {
    method: Ident,
    /// The type of what the work is handed.
    held: TokenStream,
    /// The body's names for it.
    bindings: TokenStream,
}

impl Door {
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

/// An executor of our own, so that nothing stays borrowed from what the work takes with it.
fn executor(given: &Expr) -> TokenStream {
    let at = Span::mixed_site().located_at(given.span());
    quote_spanned!(at=> <::semel::Executor<_> as ::core::clone::Clone>::clone(&(#given)))
}

/// An expression of type `semel::Command`, which may leave the function by `?`.
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
