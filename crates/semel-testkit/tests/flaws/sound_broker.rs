//! The suite of brokers on a broker in memory.

use crate::memory_broker::{Flaw, Memory};

semel_testkit::broker_conformance!(Memory::new(Flaw::Nothing); ordered, raw, restart);
