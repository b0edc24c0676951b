//! The directory for temporary files of a test run: in memory, if the machine has enough of it.
//!
//! The tests create thousands of databases. On a disk more than half of their time goes into `fsync`,
//! which these tests do not need: they kill processes, and files in memory survive that too.
//! Benchmarks and fault runs stay on the disk, because they measure it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory on Linux below which files are kept in memory.
const MEMORY: &str = "/dev/shm";
/// The start of the name of a directory that [`in_memory`] made.
const PREFIX: &str = "semel-tests-";
/// The free memory that the tests need, in KiB. They use about a quarter of it.
const ROOM: u64 = 8 * 1024 * 1024;

/// Executes this program again with its temporary directory in memory. Returns without doing so if
/// the machine lacks the memory, or if `TMPDIR` is already set.
pub(crate) fn in_memory(args: &[String]) {
    if std::env::var_os("TMPDIR").is_some() || !has_room() {
        return;
    }
    let directory = Path::new(MEMORY).join(format!("{PREFIX}{}", std::process::id()));
    if fs::create_dir(&directory).and_then(|()| open_to_servers(&directory)).is_err() {
        return;
    }
    eprintln!("xtask: temporary files are kept in {}", directory.display());
    if let Ok(program) = std::env::current_exe() {
        // `exec` returns only on failure: the tests then run on the disk.
        let error = Command::new(program).args(args).env("TMPDIR", &directory).exec();
        eprintln!("xtask: cannot start again: {error}");
    }
    let _ = fs::remove_dir(&directory);
}

/// Removes the directory that [`in_memory`] made for this process, if it did.
pub(crate) fn clear() {
    if let Some(directory) = ours(std::env::var_os("TMPDIR")) {
        let _ = fs::remove_dir_all(directory);
    }
}

fn ours(directory: Option<OsString>) -> Option<PathBuf> {
    let directory = PathBuf::from(directory?);
    let name = directory.file_name()?.to_str()?;
    let ours = directory.parent() == Some(Path::new(MEMORY)) && name.starts_with(PREFIX);
    ours.then_some(directory)
}

/// Gives the directory the permissions of `/tmp`: servers run under accounts of their own.
fn open_to_servers(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o1777))
}

/// Returns whether both the file system in memory and the memory itself have room for the tests.
fn has_room() -> bool {
    let df = Command::new("df").args(["-Pk", MEMORY]).output();
    let of_files = df.ok().and_then(|output| available(&String::from_utf8_lossy(&output.stdout)));
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| unused(&text));
    of_files.is_some_and(|room| room >= ROOM) && memory.is_some_and(|room| room >= ROOM)
}

/// Returns the fourth column of the second line of `df -Pk`, in KiB.
fn available(df: &str) -> Option<u64> {
    df.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn unused(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_read_from_the_systems_own_tables() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                  tmpfs         24000000  500  23999500       1% /dev/shm\n";
        assert_eq!(available(df), Some(23_999_500));
        assert_eq!(available("df: /dev/shm: No such file or directory\n"), None);
        let meminfo = "MemTotal:  24000000 kB\nMemAvailable:   17000000 kB\n";
        assert_eq!(unused(meminfo), Some(17_000_000));
        assert_eq!(unused(""), None);
    }

    #[test]
    fn only_a_directory_of_a_test_run_is_removed() {
        assert!(ours(Some("/dev/shm/semel-tests-1".into())).is_some());
        assert!(ours(Some("/dev/shm".into())).is_none());
        assert!(ours(Some("/var/semel-tests-1".into())).is_none());
        assert!(ours(None).is_none());
    }
}
