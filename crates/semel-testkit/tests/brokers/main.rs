//! The suite of brokers on a broker in memory.

mod memory;

use memory::{Flaw, Memory};

semel_testkit::broker_conformance!(Memory::new(Flaw::Nothing); ordered, raw, restart);
