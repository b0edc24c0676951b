//! The tests of ids that need no server, one program.

mod codec;
mod generator;
mod migration;
mod resolver;
