//! The program `semel`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    semel_server::main()
}
