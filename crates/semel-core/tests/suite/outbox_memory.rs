//! Runs the conformance suite on the memory outbox, with a manual clock.

use std::time::Duration;

use semel_core::outbox::memory::MemoryOutbox;
use semel_core::{Clock, Timestamp};
use semel_testkit::{OutboxFixture, outbox_conformance};

struct Memory {
    outbox: MemoryOutbox,
    clock: Clock,
}

impl Memory {
    async fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self { outbox: MemoryOutbox::with_clock(clock.clone()), clock }
    }
}

impl OutboxFixture for Memory {
    type Outbox = MemoryOutbox;
    type Transaction = MemoryOutbox;

    async fn outbox(&self) -> MemoryOutbox {
        self.outbox.clone()
    }

    async fn begin(&self, outbox: &MemoryOutbox) -> MemoryOutbox {
        outbox.clone()
    }

    fn connection(transaction: &mut MemoryOutbox) -> &mut MemoryOutbox {
        transaction
    }

    /// Does nothing: appended events are visible at once, and the append has rung the bell.
    async fn commit(&self, _: &MemoryOutbox, _: MemoryOutbox) {}

    async fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Setting the clock has no effect on the outbox, which uses passed time only.
    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let (now, by) = (self.clock.now().as_micros(), semel_core::clock::micros(span));
        self.clock.set(Timestamp::from_micros(if ahead { now + by } else { now - by }));
        false
    }
}

outbox_conformance!(Memory::new());

/// Tests that a relay with invalid settings is refused.
mod settings {
    use semel_core::InvalidPolicy;
    use semel_core::outbox::Relay;
    use semel_testkit::outbox::broker::Broker;

    use super::*;

    #[test]
    fn a_relay_with_invalid_settings_is_refused() {
        let builder = || Relay::builder(MemoryOutbox::new(), Broker::new());
        let short = builder().lease(Duration::from_millis(1)).build().map(drop);
        assert!(matches!(short, Err(InvalidPolicy::LeaseTooShort { .. })), "{short:?}");
        let long = builder().lease(Duration::from_secs(1_000_000)).build().map(drop);
        assert!(matches!(long, Err(InvalidPolicy::LeaseTooLong { .. })), "{long:?}");
        let never = builder().max_attempts(0).build().map(drop);
        assert!(matches!(never, Err(InvalidPolicy::NoAttempts)), "{never:?}");
        assert!(builder().build().is_ok());
    }
}
