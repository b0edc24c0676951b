//! Macros that the suites share. Each takes a suite's list of behaviours and makes tests, a table or a
//! list of names from it.
//!
//! A suite is a module of groups; a group is a module of async functions that take a fixture.

/// Makes one `#[test]` per behaviour of `$suite`, in one module per group.
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

/// Makes one `#[test]` per behaviour of `$suite`, through [`AnyFixture`](crate::AnyFixture): the
/// suite is compiled once instead of once per store.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_any_tests {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        $(
            mod $group {
                #[allow(unused_imports)]
                use super::*;
                $(
                    #[test]
                    fn $behaviour() {
                        let making = async { $crate::AnyFixture::new(($make).await) };
                        let making = ::std::boxed::Box::pin(making);
                        $crate::$suite::test(stringify!($group), stringify!($behaviour), making);
                    }
                )*
            }
        )*
    };
}

/// Makes a table of a name and a function per behaviour of `$suite`, through
/// [`AnyFixture`](crate::AnyFixture) as [`__suite_any_tests`] does.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_any_table {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        vec![$($((
            concat!(stringify!($group), "::", stringify!($behaviour)),
            Box::new(move || {
                let making = Box::pin(async move { $crate::AnyFixture::new(($make).await) });
                $crate::$suite::test(stringify!($group), stringify!($behaviour), making);
            }) as Box<dyn Fn() + Send>,
        ),)*)*]
    };
}

/// Defines `behave`, which runs a behaviour by its name.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_dispatch {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        /// Returns the future of the behaviour with this name; `None` if there is no such
        /// behaviour.
        fn behave(
            group: &str,
            behaviour: &str,
            fixture: $crate::AnyFixture,
        ) -> Option<std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>> {
            type Running = std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>;
            $($(
                if group == stringify!($group) && behaviour == stringify!($behaviour) {
                    // One function per behaviour: the futures of all behaviours do not fit in one
                    // stack frame.
                    fn run(fixture: $crate::AnyFixture) -> Running {
                        Box::pin($group::$behaviour(fixture))
                    }
                    return Some(run(fixture));
                }
            )*)*
            None
        }
    };
}

/// Makes a table of a name and a function per behaviour of `$suite`.
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

/// Lists the names of all behaviours, by group.
#[doc(hidden)]
#[macro_export]
macro_rules! __suite_names {
    ($suite:ident, $make:expr; $($group:ident { $($behaviour:ident,)* })*) => {
        &[$((stringify!($group), &[$(stringify!($behaviour)),*])),*]
    };
}

/// The names of the behaviours of a suite, by group.
pub type Groups = &'static [(&'static str, &'static [&'static str])];

/// Returns the names of the public async functions in the source of a group. A test compares them
/// with the list of behaviours, because a function that is not listed never runs.
#[cfg(test)]
pub(crate) fn written(source: &str) -> Vec<&str> {
    let functions = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
    functions.filter_map(|line| line.split('<').next()).collect()
}
