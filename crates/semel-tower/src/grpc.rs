//! The layer for unary gRPC methods.
