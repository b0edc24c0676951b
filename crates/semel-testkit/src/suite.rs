//! Shared by the suites: makes tests, a table and names of one list of behaviours.
//!
//! A suite is a module of groups, a group a module of async functions that take a fixture.

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

/// Makes a `#[test]` of every behaviour of `$suite`, which is compiled for
/// [`AnyFixture`](crate::AnyFixture) alone.
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

/// Makes a name and a function of every behaviour of `$suite`, as [`__suite_any_tests`] does.
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
        /// Returns the future of a behaviour; `None` if there is none of this name.
        fn behave(
            group: &str,
            behaviour: &str,
            fixture: $crate::AnyFixture,
        ) -> Option<std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>> {
            type Running = std::pin::Pin<Box<dyn std::future::Future<Output = ()>>>;
            $($(
                if group == stringify!($group) && behaviour == stringify!($behaviour) {
                    // A function of its own: the futures of all behaviours do not fit one frame.
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

/// Returns the behaviours in the file of a group: one that is written but not listed would run nowhere.
#[cfg(test)]
pub(crate) fn written(source: &str) -> Vec<&str> {
    let functions = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
    functions.filter_map(|line| line.split('<').next()).collect()
}
