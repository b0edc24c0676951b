//! What the suites have in common: from one list of behaviours to tests, to a table, to names.
//!
//! A suite is a module of groups, a group a module of async functions that take a fixture. No
//! behaviour is here, and no list of them.

/// Makes a `#[test]` of every behaviour of `$suite`, in a module per group.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[test]
                    fn $behaviour() {
                        $crate::fixture::run(async {
                            let fixture = ($make).await;
                            $crate::$suite::$group::$behaviour(fixture).await;
                        });
                    }
                )*
            }
        )*
    };
}

/// Makes a name and a function of every behaviour of `$suite`.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_table {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        vec![$($((
            concat!(stringify!($group), "::", stringify!($behaviour)),
            Box::new(move || $crate::fixture::run(async move {
                let fixture = ($make).await;
                $crate::$suite::$group::$behaviour(fixture).await;
            })) as Box<dyn Fn() + Send>,
        ),)*)*]
    };
}

/// The names of every behaviour, by group.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_names {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        &[$((stringify!($group), &[$(stringify!($behaviour)),*])),*]
    };
}

/// The behaviours of a capability, by group.
pub type Groups = &'static [(&'static str, &'static [&'static str])];

/// The behaviours that a group's file has: one that is written but not listed would run nowhere.
#[cfg(test)]
pub(crate) fn written(source: &str) -> Vec<&str> {
    let functions = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
    functions.filter_map(|line| line.split('<').next()).collect()
}
