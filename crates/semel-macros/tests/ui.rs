//! Tests the compile errors of invalid uses of the macros: their text and their position.
//!
//! Only errors of the macros themselves are tested. The compiler's own errors about types change
//! with its releases.

#[test]
fn mistakes_are_reported_at_their_position() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
