//! The scripts, one a verb, each on exactly one key.
//!
//! Every script reads and compares first and writes last, once: Redis does not roll a failed script
//! back, so a script that could fail after its write could not be trusted about either.

use std::sync::LazyLock;

use redis::Cmd;

/// A script with its name on the server.
pub(crate) struct Script {
    source: String,
    hash: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(
            pub(crate) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(include_str!(concat!("lua/", $file))));
        )*

        #[cfg(test)]
        const FILES: &[(&str, &str)] = &[$(($file, include_str!(concat!("lua/", $file)))),*];
    };
}

scripts! {
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

/// How a call names its script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By its hash, which a server that has never seen it refuses with NOSCRIPT.
    Hash,
    /// By its whole text, which every server takes, and remembers.
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
    /// The command to send.
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

/// With the guard on the store's clock removed, the scripts believe the caller's clock.
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
    fn scripts_touch_no_key_but_the_one_that_is_declared() {
        for (file, text) in FILES {
            let found = calls(text);
            assert!(!found.is_empty(), "{file} calls nothing: the lint is blind");
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
    fn nothing_that_can_fail_follows_a_write() {
        for (file, text) in FILES {
            let found = calls(text);
            let is_write = |call: &str| call.starts_with("'SET'") || call.starts_with("'DEL'");
            let Some(first) = found.iter().position(|(_, call)| is_write(call)) else { continue };
            // TIME and GET come before the first write of their branch; what follows the last
            // branch is protected.
            let last = found.iter().rposition(|(_, call)| is_write(call)).unwrap();
            assert!(found[last + 1..].iter().all(|(protected, _)| *protected), "{file}");
            for (_, call) in &found[first..=last] {
                assert!(is_write(call) || call.starts_with("'TIME'"), "{file}: {call}");
            }
        }
    }

    #[test]
    fn every_script_reads_the_clock_where_the_sabotage_switch_finds_it() {
        for (file, text) in FILES {
            let clocks = text.matches("'TIME'").count();
            assert_eq!(clocks, text.matches("local t = redis.call('TIME') -- clock").count());
            assert_eq!(clocks, 1, "{file}");
        }
    }
}
