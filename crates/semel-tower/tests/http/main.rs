//! The HTTP door's protocol, over real sockets.

#[path = "../ground.rs"]
mod ground;

mod replays;
