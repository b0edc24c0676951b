//! The TypeScript package, compiled in a directory of one test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use semel_servers::{install, node};

use crate::databases::Databases;
use crate::{root, succeed};

/// The TypeScript package with its dependencies, and databases of its own that have Semel's tables and
/// functions.
#[derive(Debug)]
pub struct TypeScript {
    /// A copy of the package: its packages and what is compiled stay out of the repository.
    package: PathBuf,
    databases: Databases,
}

impl TypeScript {
    /// Prepares the package, and a database on each of the servers `names` (`postgres`, `mysql`, `mysql9`),
    /// whose URLs are in the environment.
    ///
    /// # Panics
    /// If there is no such server, or npm cannot install the packages, or a type is wrong.
    pub async fn on(names: &[&str]) -> Self {
        let databases = Databases::on(names).await;
        let source = root().join("sdk/typescript");
        let manifest = fs::read_to_string(source.join("package.json")).expect("a manifest");
        let modules = node::modules(&manifest).expect("the packages");
        let package = databases.directory().join("typescript");
        for directory in ["src", "test"] {
            copy(&source.join(directory), &package.join(directory));
        }
        copy(&root().join("tests/languages/clients"), &package.join("clients"));
        for file in ["package.json", "tsconfig.json"] {
            fs::copy(source.join(file), package.join(file)).expect("a copy");
        }
        symlink(modules, package.join("node_modules")).expect("a link");
        let typescript = Self { package, databases };
        succeed(typescript.node().arg("node_modules/typescript/bin/tsc"));
        typescript
    }

    /// Returns the URLs of the databases, in the order of their names.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.databases.urls()
    }

    /// Returns a command that runs Node.js in the package, with the URLs of the databases and the path of the
    /// documents in the variables of its tests.
    ///
    /// # Panics
    /// Without Node.js.
    pub fn node(&self) -> Command {
        self.command(&install::node().expect("Node.js"))
    }

    /// Returns a command that runs npm in the package, with the same variables.
    ///
    /// # Panics
    /// Without npm.
    pub fn npm(&self) -> Command {
        self.command(&install::npm().expect("npm"))
    }

    fn command(&self, program: &Path) -> Command {
        let documents = fs::canonicalize(root().join("docs")).expect("the documents");
        let mut command = Command::new(program);
        // Only the databases of this test.
        for name in ["SEMEL_TEST_POSTGRES_URL", "SEMEL_TEST_MYSQL_URL"] {
            command.env_remove(name);
        }
        self.databases.tell(&mut command);
        command.current_dir(&self.package).env("SEMEL_TEST_DOCS", documents);
        command
    }

    /// Removes the databases, and the copy of the package.
    pub async fn remove(self) {
        self.databases.remove().await;
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            let name = path.file_name().expect("a name");
            fs::copy(&path, to.join(name)).expect("a copy");
        }
    }
}
