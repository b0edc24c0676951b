//! The scripts of streams, each on exactly one key.

use std::sync::LazyLock;

use crate::script::{Script, scripts};

scripts! { "../lua/stream/":
    PUBLISH = "publish.lua",
    JOIN = "join.lua",
    TAKE = "take.lua",
    TAKE_IN_ORDER = "take_in_order.lua",
    HOLD = "hold.lua",
    ACK = "ack.lua",
    LEAVE = "leave.lua",
    TRIM = "trim.lua",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_touch_only_the_declared_key() {
        for (file, text) in FILES {
            let code: String = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("--"))
                .flat_map(|line| [line.trim(), " "])
                .collect();
            let calls: Vec<&str> = code.split("redis.").skip(1).collect();
            assert!(!calls.is_empty(), "{file} contains no call: the check would be void");
            for call in calls {
                let end = call.find(')').unwrap();
                let keyless = call.contains("'TIME'") || call.contains("'PUBLISH', ARGV[1]");
                assert!(keyless || call[..end].contains("KEYS[1]"), "{file}: redis.{call}");
            }
            assert!(!text.contains("KEYS[2]"), "{file}");
        }
    }
}
