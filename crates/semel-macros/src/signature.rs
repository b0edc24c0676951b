//! The signature of the function: what callers get, and what its body borrows.
//!
//! The signature is not changed: it has the result for callers. The body is the work, and returns what is
//! inside that result.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{
    FnArg, GenericArgument, Ident, Lifetime, Pat, PatIdent, PatType, PathArguments, PathSegment,
    ReceiverKind, ReturnType, Signature, Token, Type,
};

use crate::complaints::Complaints;

/// The return type of the function.
pub(crate) struct Answer {
    /// Whether callers get the whole `Execution`, or only its value.
    pub(crate) whole: bool,
    /// The type that the body returns.
    pub(crate) work: TokenStream,
    /// Where type errors are reported.
    pub(crate) span: Span,
}

/// How the body gets its `self`.
pub(crate) enum Me {
    /// There is none, or the body owns it.
    Owned,
    /// As a clone of what the function borrows.
    Borrowed {
        /// The type that is borrowed: `Self`, or `X` of `self: &X`.
        owned: TokenStream,
        /// The function's own `self`; another token would not have its hygiene.
        token: Token![self],
    },
}

/// A parameter that borrows from the caller.
pub(crate) struct Borrowed {
    /// The name.
    pub(crate) name: Ident,
    /// The whole parameter.
    pub(crate) written: PatType,
}

/// Parses the return type.
pub(crate) fn answer(signature: &Signature) -> syn::Result<Answer> {
    let ReturnType::Type(_, written) = &signature.output else {
        return Err(unfit(&signature.ident));
    };
    let span = written.span();
    let [value, error] = arguments(last(written, |name| name == "Result"))
        .and_then(|arguments| <[&Type; 2]>::try_from(arguments).ok())
        .ok_or_else(|| unfit(written))?;
    let work_error = arguments(last(error, |name| name.ends_with("Error")))
        .and_then(|arguments| <[&Type; 1]>::try_from(arguments).ok());
    let Some([work_error]) = work_error else {
        let message = "callers can be refused before the body runs, and must see it: write \
                       `semel::Error<…>` around this; the body still fails with what is inside";
        return Err(syn::Error::new_spanned(error, message));
    };
    let inside = arguments(last(value, |name| name == "Execution"))
        .and_then(|arguments| <[&Type; 1]>::try_from(arguments).ok());
    let work_value = inside.map_or(value, |[value]| value);
    let at = Span::mixed_site().located_at(span);
    Ok(Answer {
        whole: inside.is_some(),
        work: quote_spanned!(at=> ::core::result::Result<#work_value, #work_error>),
        span,
    })
}

fn unfit(place: impl ToTokens) -> syn::Error {
    let message = "an idempotent function returns `Result<semel::Execution<T>, semel::Error<E>>`, \
                   or `Result<T, semel::Error<E>>` for the value alone, written out; its body \
                   gives `Result<T, E>`";
    syn::Error::new_spanned(place, message)
}

/// Returns the last segment of a path, if `will_do` accepts its name.
fn last(written: &Type, will_do: impl FnOnce(&str) -> bool) -> Option<&PathSegment> {
    match written {
        Type::Path(path) => {
            path.path.segments.last().filter(|last| will_do(&last.ident.to_string()))
        }
        Type::Group(group) => last(&group.elem, will_do),
        Type::Paren(paren) => last(&paren.elem, will_do),
        _ => None,
    }
}

/// Returns the type arguments of a path segment, if it has no other arguments.
fn arguments(segment: Option<&PathSegment>) -> Option<Vec<&Type>> {
    let PathArguments::AngleBracketed(bracketed) = &segment?.arguments else { return None };
    let types = bracketed.args.iter().map(|argument| match argument {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    });
    types.collect()
}

/// Parses the receiver.
pub(crate) fn me(signature: &Signature) -> syn::Result<Me> {
    let Some(receiver) = signature.receiver() else { return Ok(Me::Owned) };
    let refused = || {
        let message = "the work outlives the caller, so it cannot borrow `self` like this: \
                       take `&self`, of which it gets a clone, `self` or `self: Arc<Self>`";
        Err(syn::Error::new_spanned(receiver, message))
    };
    let at = Span::mixed_site().located_at(receiver.span());
    match &receiver.kind {
        ReceiverKind::Value => Ok(Me::Owned),
        ReceiverKind::Reference(_, _, None) => {
            Ok(Me::Borrowed { owned: quote_spanned!(at=> Self), token: receiver.self_token })
        }
        ReceiverKind::Reference(..) => refused(),
        ReceiverKind::Typed(_, written) => match &**written {
            Type::Reference(reference) if reference.mutability.is_none() => {
                let owned = reference.elem.to_token_stream();
                Ok(Me::Borrowed { owned, token: receiver.self_token })
            }
            written if borrows(written) => refused(),
            _ => Ok(Me::Owned),
        },
        _ => refused(),
    }
}

/// Returns the parameters that borrow from the caller, except for destructured ones, where only the compiler
/// knows which names borrow.
pub(crate) fn borrowed(signature: &Signature) -> Vec<Borrowed> {
    let borrowed = signature.inputs.iter().filter_map(|input| match input {
        FnArg::Typed(parameter) if borrows(&parameter.ty) => match &*parameter.pat {
            Pat::Ident(PatIdent { ident, .. }) => {
                Some(Borrowed { name: ident.clone(), written: parameter.clone() })
            }
            _ => None,
        },
        FnArg::Typed(_) | FnArg::Receiver(_) => None,
    });
    borrowed.collect()
}

/// Adds an error if `name` is also the name of a parameter.
pub(crate) fn not_a_parameter(signature: &Signature, name: &Ident, complaints: &mut Complaints) {
    let taken = signature.inputs.iter().any(|input| match input {
        FnArg::Typed(parameter) => names(&parameter.pat).contains(name),
        FnArg::Receiver(_) => false,
    });
    if taken {
        complaints
            .add(name.span(), format!("`{name}` is also a parameter; call it something else"));
    }
}

fn names(pattern: &Pat) -> Vec<Ident> {
    #[derive(Default)]
    struct Names(Vec<Ident>);
    impl Visit<'_> for Names {
        fn visit_pat_ident(&mut self, pattern: &PatIdent) {
            self.0.push(pattern.ident.clone());
            visit::visit_pat_ident(self, pattern);
        }
    }
    let mut names = Names::default();
    names.visit_pat(pattern);
    names.0
}

/// Returns whether a type visibly borrows for less than `'static`.
fn borrows(written: &Type) -> bool {
    struct Borrows(bool);
    impl Visit<'_> for Borrows {
        fn visit_type_reference(&mut self, reference: &syn::TypeReference) {
            self.0 |= reference.lifetime.as_ref().is_none_or(|lifetime| !is_static(lifetime));
            visit::visit_type_reference(self, reference);
        }
        fn visit_lifetime(&mut self, lifetime: &Lifetime) {
            self.0 |= !is_static(lifetime);
        }
        // The arguments of a function pointer are not borrowed now.
        fn visit_type_fn_ptr(&mut self, _: &syn::TypeFnPtr) {}
        fn visit_parenthesized_generic_arguments(
            &mut self,
            _: &syn::ParenthesizedGenericArguments,
        ) {
        }
    }
    let mut found = Borrows(false);
    found.visit_type(written);
    found.0
}

fn is_static(lifetime: &Lifetime) -> bool {
    lifetime.ident == "static"
}
