//! The behaviours that every broker must have, its publisher and its source: one async function
//! each, generic over a [`BrokerFixture`], and one macro that makes a named test of each.
//!
//! The first groups speak to the broker itself; the later ones put a consumer and an inbox in memory
//! on top. What not every broker can do is a *capability*, a group of behaviours of its own that a
//! fixture names in [`broker_conformance!`](crate::broker_conformance!). Of outboxes and relays only
//! [`outage`] makes use; they are tried elsewhere.
//!
//! | capability | what it takes |
//! |---|---|
//! | `ordered` | sources that bring the events of a lane one after another |
//! | `raw` | messages that are no events can be put among them |
//! | `restart` | the broker can be killed and started again |
//! | `outage` | as `restart`; takes more than a minute, most of it asleep |

pub mod consuming;
pub mod handling;
mod list;
pub mod ordering;
pub mod outage;
pub mod publishing;
pub mod restarting;
mod scene;
pub mod settling;
pub mod unreadable;
mod watched;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::Source;
use semel_core::outbox::Publisher;

pub use list::BEHAVIOURS;
pub use outage::leave_dead_for;
pub use scene::give_up_after;
pub use watched::{Watched, WatchedMessage};

/// A place for one test's messages: a stream, an exchange, a prefix. Dropping it cleans up.
///
/// Every behaviour gets a fixture of its own, so nothing that one test publishes reaches another.
pub trait BrokerFixture: Send + Sync + 'static {
    /// The publisher under test.
    type Publisher: Publisher;
    /// The source under test.
    type Source: Source;

    /// A publisher. A second call gives another one, over a connection of its own.
    fn publisher(&self) -> impl Future<Output = Self::Publisher> + Send;

    /// A source of this consumer group, over a connection of its own. When the future ends the
    /// broker knows the group: it gets whatever is published from then on.
    ///
    /// An `ordered` source brings the events of a lane one after another. The suite never asks for
    /// both kinds in one group.
    fn source(&self, group: &str, ordered: bool) -> impl Future<Output = Self::Source> + Send;

    /// How long the broker of this fixture waits for an answer before it brings a message again.
    ///
    /// Set it short, for behaviours wait for it several times over; but so long that a loaded
    /// machine [keeps](semel_core::inbox::Message::keep) a message in time. Default 3 s. Where the broker
    /// waits for ever as long as its client lives, any span will do.
    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// Into how many partitions publisher and ordered source divide the lanes. Default 16.
    fn partitions(&self) -> u16 {
        16
    }

    /// Puts a message with exactly these bytes, which are no event, where the sources find it.
    /// Needed under the capability `raw`.
    fn put_raw(&self, bytes: Bytes) -> impl Future<Output = ()> + Send {
        let _ = bytes;
        async { panic!("this fixture claims to put raw messages and does not say how") }
    }

    /// Kills the broker as abruptly as it can be killed. Needed under the capabilities `restart` and
    /// `outage`.
    fn kill(&self) -> impl Future<Output = ()> + Send {
        async { panic!("this fixture claims to kill its broker and does not say how") }
    }

    /// Starts a broker that was killed again, at the same address with what it had written down.
    /// Ends when it takes connections. Needed under the capabilities `restart` and `outage`.
    fn revive(&self) -> impl Future<Output = ()> + Send {
        async { panic!("this fixture claims to revive its broker and does not say how") }
    }

    /// Kills the broker and starts it again.
    fn restart(&self) -> impl Future<Output = ()> + Send {
        async {
            self.kill().await;
            self.revive().await;
        }
    }
}

/// Makes one `#[test]` of every behaviour of brokers, in a module per group.
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

/// The behaviours that all brokers have and those of the capabilities that are named, as a name
/// (`group::behaviour`) and a function that panics where the broker has it not: for proofs that a
/// wrong broker is found.
///
/// The arguments are as for [`broker_conformance!`](crate::broker_conformance!); what they use of
/// their surroundings must be `Copy`.
#[macro_export]
macro_rules! broker_behaviours {
    ($make:expr $(; $($capability:ident),+ $(,)?)?) => {{
        #[allow(unused_mut)]
        let mut all = $crate::__broker_behaviours!(common, __suite_table, $make);
        $($(all.extend($crate::__broker_behaviours!($capability, __suite_table, $make));)+)?
        all
    }};
}
