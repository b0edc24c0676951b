//! What the compiler says about a use of our macros that cannot work: our own words, at the
//! place where the mistake is.
//!
//! Only what we say ourselves is here. The compiler's own complaints about types change with its
//! releases, and are not ours to pin.

#[test]
fn mistakes_are_named_where_they_are_made() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
