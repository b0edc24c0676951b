//! The HTTP door's protocol, over real sockets.
