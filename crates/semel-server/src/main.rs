//! The program `semel`.
#![forbid(unsafe_code)]

/// The allocator of the process. Calls allocate and free kilobytes on all threads between records
/// that live long; for this pattern the system's allocator is slow and returns little memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    semel_server::main()
}
