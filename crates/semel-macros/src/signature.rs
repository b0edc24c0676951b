//! Examines the signature of the function: its return type, and the parameters that borrow.
//!
//! The signature is not changed: its return type is the result that callers get. The body is the
//! work, and returns the value or error inside that result.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{
    FnArg, GenericArgument, Ident, Lifetime, Pat, PatIdent, PatType, PathArguments, PathSegment,
    ReceiverKind, ReturnType, Signature, Token, Type,
};

use crate::errors::Errors;

/// The return type of the function.
pub(crate) struct Answer {
    /// Whether callers get the whole `Execution`, or only its value.
    pub(crate) whole: bool,
    /// The type that the body returns.
    pub(crate) work: TokenStream,
    /// The span at which type errors are reported.
    pub(crate) span: Span,
}

/// The way in which the body gets its `self`.
pub(crate) enum SelfKind {
    /// The function has no `self`, or the body owns it.
    Owned,
    /// The function borrows `self`, and the body gets a clone.
    Borrowed {
        /// The type that is borrowed: `Self`, or `X` of `self: &X`.
        owned: TokenStream,
        /// The `self` token of the function; another token would have different hygiene.
        token: Token![self],
    },
}

/// A parameter that borrows from the caller.
pub(crate) struct Borrowed {
    /// The name of the parameter.
    pub(crate) name: Ident,
    /// The whole parameter.
    pub(crate) written: PatType,
}

/// Parses the return type of the function.
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

/// Returns the last segment of a path, if `accepts` returns true for its name.
fn last(written: &Type, accepts: impl FnOnce(&str) -> bool) -> Option<&PathSegment> {
    match written {
        Type::Path(path) => {
            path.path.segments.last().filter(|last| accepts(&last.ident.to_string()))
        }
        Type::Group(group) => last(&group.elem, accepts),
        Type::Paren(paren) => last(&paren.elem, accepts),
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
pub(crate) fn self_kind(signature: &Signature) -> syn::Result<SelfKind> {
    let Some(receiver) = signature.receiver() else { return Ok(SelfKind::Owned) };
    let refused = || {
        let message = "the work outlives the caller, so it cannot borrow `self` like this: \
                       take `&self`, of which it gets a clone, `self` or `self: Arc<Self>`";
        Err(syn::Error::new_spanned(receiver, message))
    };
    let at = Span::mixed_site().located_at(receiver.span());
    match &receiver.kind {
        ReceiverKind::Value => Ok(SelfKind::Owned),
        ReceiverKind::Reference(_, _, None) => {
            Ok(SelfKind::Borrowed { owned: quote_spanned!(at=> Self), token: receiver.self_token })
        }
        ReceiverKind::Reference(..) => refused(),
        ReceiverKind::Typed(_, written) => match &**written {
            Type::Reference(reference) if reference.mutability.is_none() => {
                let owned = reference.elem.to_token_stream();
                Ok(SelfKind::Borrowed { owned, token: receiver.self_token })
            }
            written if borrows(written) => refused(),
            _ => Ok(SelfKind::Owned),
        },
        _ => refused(),
    }
}

/// Returns the parameters that borrow from the caller. Destructured parameters are left out, since
/// only the compiler can determine which of their names borrow.
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
pub(crate) fn not_a_parameter(signature: &Signature, name: &Ident, errors: &mut Errors) {
    let taken = signature.inputs.iter().any(|input| match input {
        FnArg::Typed(parameter) => names(&parameter.pat).contains(name),
        FnArg::Receiver(_) => false,
    });
    if taken {
        errors.add(name.span(), format!("`{name}` is also a parameter; call it something else"));
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

/// Returns whether a type contains a reference or lifetime that is not `'static`.
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
        // The arguments of a function pointer are not borrowed from the caller.
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
