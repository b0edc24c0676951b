//! The program `semel`.
#![forbid(unsafe_code)]

/// Calls allocate and free kilobytes on all threads beside records that stay, which is what the system's
/// allocator is slowest at and returns least memory of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    semel_server::main()
}
