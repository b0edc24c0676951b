//! The tests of ids that need no server, as one program.

mod codec;
mod generator;
mod migration;
mod resolver;
