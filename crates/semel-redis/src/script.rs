//! The Lua scripts of the ledger, one per verb, each on exactly one key.
//!
//! Every script reads and compares first, and writes once, last. Redis does not roll back a failed
//! script, so after an error in a script that could fail behind its write, it would be unknown
//! whether it wrote.

use std::sync::LazyLock;

use redis::Cmd;

/// A script and the hash by which a server knows it.
pub(crate) struct Script {
    source: String,
    hash: String,
}

/// Declares the scripts of a folder, and their texts as `FILES` for tests.
macro_rules! scripts {
    ($folder:literal: $($name:ident = $file:literal),* $(,)?) => {
        $(
            pub(crate) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(include_str!(concat!($folder, $file))));
        )*

        #[cfg(test)]
        const FILES: &[(&str, &str)] = &[$(($file, include_str!(concat!($folder, $file)))),*];
    };
}
pub(crate) use scripts;

scripts! { "lua/":
    OPEN = "open.lua",
    PEEK = "peek.lua",
    END = "end.lua",
    GRANT = "grant.lua",
    REDRIVE = "redrive.lua",
    REDATE = "redate.lua",
    RENEW = "renew.lua",
}

#[cfg(feature = "testing")]
pub(crate) static REWIND: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("lua/rewind.lua")));

/// How a call identifies its script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By its hash. A server that does not know the script refuses it with NOSCRIPT.
    Hash,
    /// By its whole text, which every server accepts and remembers.
    Source,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        let source = sabotaged(text);
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// One call of a script.
pub(crate) struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) key: &'a [u8],
    pub(crate) args: &'a [&'a [u8]],
}

impl Call<'_> {
    /// Returns the command to send.
    pub(crate) fn command(&self, by: By) -> Cmd {
        let (verb, name) = match by {
            By::Hash => ("EVALSHA", &self.script.hash),
            By::Source => ("EVAL", &self.script.source),
        };
        let size: usize = self.args.iter().map(|arg| arg.len()).sum();
        let mut command = Cmd::with_capacity(self.args.len() + 6, size + name.len() + 128);
        command.arg(verb).arg(name).arg("1").arg(self.key);
        for arg in self.args {
            command.arg(*arg);
        }
        #[cfg(feature = "testing")]
        if clock_is_sabotaged() {
            let now = semel_core::Clock::system().now().as_micros();
            command.arg(now / 1_000_000).arg(now % 1_000_000);
        }
        command
    }
}

#[cfg(feature = "testing")]
fn clock_is_sabotaged() -> bool {
    semel_core::testing::sabotaged(semel_core::testing::Guard::StoreClock)
}

/// Returns the text of a script. If a test has disabled the guard of the store's clock, the script
/// uses the caller's clock.
fn sabotaged(text: &str) -> String {
    #[cfg(feature = "testing")]
    if clock_is_sabotaged() {
        let believed = "local t = { ARGV[#ARGV - 1], ARGV[#ARGV] }";
        return text.replace("local t = redis.call('TIME') -- clock", believed);
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<(bool, &str)> {
        let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
        code.flat_map(|line| {
            line.split("redis.").skip(1).map(|call| {
                let protected = call.starts_with("pcall(");
                let rest = call.split_once('(').map_or("", |(_, rest)| rest);
                (protected, rest)
            })
        })
        .collect()
    }

    #[test]
    fn scripts_touch_only_the_declared_key() {
        for (file, text) in FILES {
            let found = calls(text);
            assert!(!found.is_empty(), "{file} contains no call: the check would be void");
            for (_, call) in found {
                let keyless = call.starts_with("'TIME')") || call.starts_with("'PUBLISH', ARGV[");
                let declared = ["'GET'", "'SET'", "'DEL'"]
                    .iter()
                    .any(|verb| call.starts_with(&format!("{verb}, KEYS[1]")));
                assert!(keyless || declared, "{file}: redis.call({call}");
            }
        }
    }

    #[test]
    fn no_call_that_can_fail_follows_a_write() {
        for (file, text) in FILES {
            let found = calls(text);
            let is_write = |call: &str| call.starts_with("'SET'") || call.starts_with("'DEL'");
            let Some(first) = found.iter().position(|(_, call)| is_write(call)) else { continue };
            // TIME and GET come before the first write of their branch; calls after the last branch
            // use pcall.
            let last = found.iter().rposition(|(_, call)| is_write(call)).unwrap();
            assert!(found[last + 1..].iter().all(|(protected, _)| *protected), "{file}");
            for (_, call) in &found[first..=last] {
                assert!(is_write(call) || call.starts_with("'TIME'"), "{file}: {call}");
            }
        }
    }

    #[test]
    fn every_script_reads_the_clock_once_in_the_replaceable_form() {
        for (file, text) in FILES {
            let clocks = text.matches("'TIME'").count();
            assert_eq!(clocks, text.matches("local t = redis.call('TIME') -- clock").count());
            assert_eq!(clocks, 1, "{file}");
        }
    }
}
