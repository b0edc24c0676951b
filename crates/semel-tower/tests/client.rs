//! The client layer over real sockets.
