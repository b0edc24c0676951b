//! The behaviours that every broker must have, with its publisher and its source: one async function
//! per behaviour, generic over a [`BrokerFixture`], and a macro that makes a named test of each.
//!
//! The first groups call publisher and source directly; the later ones run a consumer with an inbox
//! in memory. A *capability* is a group of behaviours that only some brokers have; a test lists the
//! capabilities of its broker in [`broker_conformance!`](crate::broker_conformance!). Only [`outage`]
//! uses an outbox and a relay, which have a suite of their own.
//!
//! | capability | requirement |
//! |---|---|
//! | `ordered` | sources that deliver the events of an aggregate one after another |
//! | `raw` | the fixture can publish messages that are not events |
//! | `restart` | the broker can be killed and started again |
//! | `outage` | as `restart`; the behaviour takes more than a minute, mostly asleep |

pub mod consuming;
pub mod handling;
mod list;
pub mod ordering;
pub mod outage;
pub mod publishing;
pub mod restarting;
pub mod settling;
mod shorthand;
pub mod unreadable;
mod watched;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::Source;
use semel_core::outbox::Publisher;

pub use list::BEHAVIOURS;
pub use outage::leave_dead_for;
pub use shorthand::give_up_after;
pub use watched::{Watched, WatchedMessage};

/// The messages of one test: a stream, an exchange, a key prefix. Dropping the fixture removes
/// them.
///
/// Every behaviour gets a fixture of its own, so nothing that one test publishes reaches another.
pub trait BrokerFixture: Send + Sync + 'static {
    /// The publisher under test.
    type Publisher: Publisher;
    /// The source under test.
    type Source: Source;

    /// Opens a publisher. Every further call returns another publisher with its own connection.
    fn publisher(&self) -> impl Future<Output = Self::Publisher> + Send;

    /// Opens a source of this consumer group, with its own connection. From the moment the future
    /// completes, the broker keeps every published event for the group.
    ///
    /// An `ordered` source delivers the events of an aggregate one after another. The suite never
    /// uses both kinds of source in one group.
    fn source(&self, group: &str, ordered: bool) -> impl Future<Output = Self::Source> + Send;

    /// Returns how long the broker waits for a reply before it redelivers a message. Default 3 s.
    ///
    /// A short time makes the suite fast, because behaviours wait for several multiples of it; but
    /// a loaded machine must still be able to [keep](semel_core::inbox::Message::keep) a message in
    /// time. For a broker that waits as long as its client is connected, any time will do.
    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Returns the number of partitions that the publisher and ordered sources use. Default 16.
    fn partitions(&self) -> u16 {
        16
    }

    /// Publishes a message with exactly these bytes, which are not an event. Needed for the
    /// capability `raw`.
    fn put_raw(&self, bytes: Bytes) -> impl Future<Output = ()> + Send {
        let _ = bytes;
        async { panic!("a fixture with the capability `raw` must implement `put_raw`") }
    }

    /// Kills the broker process. Needed for the capabilities `restart` and `outage`.
    fn kill(&self) -> impl Future<Output = ()> + Send {
        async { panic!("a fixture whose broker can be restarted must implement `kill`") }
    }

    /// Starts a killed broker again at the same address with the same data, and waits until it
    /// accepts connections. Needed for the capabilities `restart` and `outage`.
    fn revive(&self) -> impl Future<Output = ()> + Send {
        async { panic!("a fixture whose broker can be restarted must implement `revive`") }
    }

    /// Kills the broker and starts it again.
    fn restart(&self) -> impl Future<Output = ()> + Send {
        async {
            self.kill().await;
            self.revive().await;
        }
    }
}

/// Makes one `#[test]` per behaviour of brokers, in one module per group.
///
/// The argument is a future that makes a fresh fixture; it is evaluated once per test, on the test's
/// own runtime. After a semicolon come the [capabilities](mod@crate::broker). Use it once per
/// module:
///
/// ```ignore
/// semel_testkit::broker_conformance!(MyFixture::new(); ordered, raw);
///
/// mod killed {
///     use super::*;
///     semel_testkit::broker_conformance!(only restart: MyFixture::on_a_private_server());
/// }
/// ```
///
/// With `only` and a capability the behaviours that all brokers have are left out: for capabilities
/// that take a server of their own.
#[macro_export]
macro_rules! broker_conformance {
    (only $capability:ident: $make:expr) => {
        $crate::__broker_behaviours!($capability, __suite_tests, $make);
    };
    ($make:expr $(; $($capability:ident),+ $(,)?)?) => {
        $crate::__broker_behaviours!(common, __suite_tests, $make);
        $($($crate::__broker_behaviours!($capability, __suite_tests, $make);)+)?
    };
}

/// Returns a table of the behaviours that all brokers have and those of the given capabilities.
/// Each entry is a name (`group::behaviour`) and a function that panics if the broker does not have
/// the behaviour, for tests that the suite finds a wrong broker.
///
/// The arguments are as for [`broker_conformance!`](crate::broker_conformance!). Variables that
/// they capture must be `Copy`.
#[macro_export]
macro_rules! broker_behaviours {
    ($make:expr $(; $($capability:ident),+ $(,)?)?) => {{
        #[allow(unused_mut)]
        let mut all = $crate::__broker_behaviours!(common, __suite_table, $make);
        $($(all.extend($crate::__broker_behaviours!($capability, __suite_table, $make));)+)?
        all
    }};
}
