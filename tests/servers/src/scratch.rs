//! The temporary directory of one server, and the janitor process that removes it after this
//! process has died.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::account::Account;
use super::error::{Error, ErrorKind};

/// Waits until its standard input closes, which happens when its parent closes the pipe or dies in
/// any way, then ends the processes listed in the file `pids` and removes the directory. Paused
/// processes run on for a second first: a server that received the parent-death signal cleans up
/// what is outside the directory, such as PostgreSQL's System V segment.
const JANITOR: &str = r#"
trap '' INT TERM HUP
read -r _
[ -d "$1" ] || exit 0
pids=$(cat "$1/pids" 2>/dev/null)
if [ -n "$pids" ]; then
    for pid in $pids; do kill -s CONT "$pid"; done
    sleep 1
    for pid in $pids; do kill -s KILL "$pid"; done
    sleep 0.2
fi
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"#;

/// A directory that is removed when this value is dropped or this process dies.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    janitor: Child,
}

impl Scratch {
    /// Creates a directory below the system's temporary directory.
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let path = create(name)?;
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "semel-janitor"])
            .arg(&path)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A process group of its own: an interrupt from the terminal must not end the janitor.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                // Nothing else would remove the directory; the error of spawning is the one to
                // report.
                let _ = fs::remove_dir_all(&path);
                Error::system("starting `sh` to clean up after a server", error)
            })?;
        Ok(Self { path, janitor })
    }

    /// Creates the directory for the server's data, owned by its account.
    pub(super) fn data(&self, account: Option<&Account>) -> Result<PathBuf, Error> {
        let data = self.path.join("data");
        fs::create_dir(&data)
            .and_then(|()| fs::set_permissions(&data, fs::Permissions::from_mode(0o700)))
            .map_err(|error| Error::system(format!("creating {}", data.display()), error))?;
        if let Some(account) = account {
            account.own(&data)?;
        }
        Ok(data)
    }

    /// Returns the file for the server's standard output and error.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Returns the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the list of processes that the janitor must end.
    pub(super) fn list(&self, pids: &[u32]) -> Result<(), Error> {
        let line = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        fs::write(self.path.join("pids"), line)
            .map_err(|error| Error::system("writing the list of server processes", error))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves a directory behind, and the janitor tries once more.
        let _ = fs::remove_dir_all(&self.path);
        drop(self.janitor.stdin.take());
        let _ = self.janitor.wait();
    }
}

fn create(name: &str) -> Result<PathBuf, Error> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let base = std::env::temp_dir();
    for _ in 0..100 {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("semel-{name}-{}-{number}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => {
                // The server's account must be able to enter the directory.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|error| {
                    Error::system(format!("opening {} for the server", path.display()), error)
                })?;
                return Ok(path);
            }
            // A process with the same id died without a janitor; its directory must not be reused.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(Error::system(format!("creating {}", path.display()), error));
            }
        }
    }
    Err(Error::new(
        ErrorKind::System,
        format!("no unused directory name for {name} in {}", base.display()),
    ))
}
