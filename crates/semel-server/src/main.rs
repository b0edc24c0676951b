//! The program `semel`.
#![forbid(unsafe_code)]

/// Every call makes and drops futures and buffers of some kilobytes beside records that stay, on all
/// threads: what the system's allocator is slowest at, and gives least back of.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    semel_server::main()
}
