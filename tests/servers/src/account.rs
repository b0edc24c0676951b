//! The operating-system account that a server runs under.

use std::path::Path;
use std::process::Command;

use super::error::{Error, ErrorKind};

/// An account without privileges, for servers that refuse to run as root.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Returns whether this process runs as root.
pub(super) fn is_root() -> bool {
    id("-u", None) == Some(0)
}

impl Account {
    /// Returns the account to change to: none if this process is not root, else the package's own
    /// account, else `nobody`.
    pub(super) fn for_server(preferred: &str) -> Result<Option<Self>, Error> {
        if !is_root() {
            return Ok(None);
        }
        [preferred, "nobody"].into_iter().find_map(Self::named).map(Some).ok_or_else(|| {
            Error::new(
                ErrorKind::Missing,
                format!(
                    "running as root needs the account `{preferred}` or `nobody`: neither exists"
                ),
            )
        })
    }

    /// Makes the account the owner of a file or directory.
    pub(super) fn own(&self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).map_err(|error| {
            Error::system(format!("changing the owner of {}", path.display()), error)
        })
    }

    fn named(name: &str) -> Option<Self> {
        let uid = id("-u", Some(name)).filter(|uid| *uid != 0)?;
        let gid = id("-g", Some(name))?;
        Some(Self { uid, gid })
    }
}

fn id(what: &str, name: Option<&str>) -> Option<u32> {
    let output = Command::new("id").arg(what).args(name).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
