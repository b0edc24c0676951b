//! The first screen, and the one line of a demo that cannot start.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::ground::Ground;
use crate::program::{self, Ended, Service};

/// What is printed until it is ready.
fn screen(more: &[&str]) -> Vec<String> {
    let ground = Ground::embedded();
    let mut child = ground.demo(more).stdout(Stdio::piped()).spawn().expect("started");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut said: Vec<String> = Vec::new();
    for line in lines.map(|line| line.expect("text")) {
        said.push(line);
        if said.last().is_some_and(|line| line == "ready") {
            break;
        }
    }
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    said
}

#[test]
fn the_first_screen_says_where_it_listens_then_what_to_try_then_ready() {
    let said = screen(&[]);
    for (line, name) in said.iter().zip(["orders", "grpc", "admin"]) {
        assert!(line.starts_with(&format!("{name}: http://127.0.0.1:")), "{said:#?}");
    }
    let orders = said[0].strip_prefix("orders: ").expect("a URL");
    assert!(
        said.iter().any(|line| line.contains(&format!("curl -i {orders}/orders"))),
        "{said:#?}"
    );
    assert!(said.iter().any(|line| line.contains("sqlite:semel-demo.db")), "{said:#?}");
    assert_eq!(said.last().map(String::as_str), Some("ready"));
}

#[test]
fn the_admin_listener_can_be_turned_off() {
    let said = screen(&["--admin-listen", "off"]);
    assert!(!said.iter().any(|line| line.starts_with("admin")), "{said:#?}");
}

/// Starts a demo that cannot start, and gives its one line.
#[track_caller]
fn refused(more: &[&str], code: i32) -> String {
    let ground = Ground::embedded();
    let output = ground.demo(more).output().expect("the program can be started");
    Ended::from(output).badly(code)
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for flag in ["--listen", "--grpc-listen", "--admin-listen"] {
        let said = refused(&[flag, &address], 1);
        assert!(said.contains(&format!("{flag}: cannot listen on {address}")), "{said}");
    }
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    for (more, named) in [
        (&["--store", "mongodb://ann:secret@db/x"][..], "is not a store URL"),
        (&["--store", "memory:"], "use sqlite:PATH"),
        (&["--store", "redis://:secret@127.0.0.1:1"], "--broker redis://"),
        (&["--broker", "kafka://ann:secret@x"], "is not a broker URL"),
        (&["--name", "a b"], "--name"),
        (&["--listen", "here"], "--listen"),
        (&["--chaos-for", "soon"], "--chaos-for"),
    ] {
        let said = refused(more, 2);
        assert!(said.starts_with("semel: ") && said.contains(named), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn a_server_that_is_away_is_named_without_its_password() {
    for (flag, url, shown) in [
        ("--store", "postgres://ann:secret@127.0.0.1:1/x", "postgres://ann:***@127.0.0.1:1/x"),
        ("--store", "mysql://ann:secret@127.0.0.1:1/x", "mysql://ann:***@127.0.0.1:1/x"),
        ("--broker", "nats://ann:secret@127.0.0.1:1", "nats://ann:***@127.0.0.1:1"),
        ("--broker", "amqp://ann:secret@127.0.0.1:1/%2f", "amqp://ann:***@127.0.0.1:1/%2f"),
        ("--broker", "redis://ann:secret@127.0.0.1:1", "redis://ann:***@127.0.0.1:1"),
    ] {
        let said = refused(&[flag, url], 4);
        assert!(said.contains(shown) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn a_file_that_cannot_be_a_database_is_unreachable_and_it_is_said_what_to_do() {
    let ground = Ground::embedded();
    std::fs::write(ground.file("letter"), "dear editor, this is no database at all")
        .expect("written");
    std::fs::create_dir(ground.file("drawer")).expect("a directory");
    for (path, why, fix) in [
        ("nowhere/at/all.db", "there is no directory nowhere/at", "create it"),
        ("drawer", "it is a directory", "as in sqlite:drawer/semel.db"),
        ("letter", "it is not a SQLite database", "name one"),
        ("letter/a.db", "there is no directory letter", "name another"),
    ] {
        let store = format!("sqlite:{path}");
        for mut command in [
            ground.demo(&["--store", &store]),
            program::semel(&ground.file(""), ["doctor", "--store", &store]),
            program::semel(&ground.file(""), ["migrate", "apply", "--store", &store]),
            program::semel(&ground.file(""), ["records", "list", "--store", &store]),
        ] {
            let ended = Ended::from(command.output().expect("the program can be started"));
            let said = ended.badly(4);
            assert!(said.contains(&store), "{said}");
            // A command that only reads does not say how to create the file.
            let absent = said.contains("there is no such file") && path.contains('/');
            assert!(absent || (said.contains(why) && said.contains(fix)), "{said}");
        }
    }
}

/// Whatever a password holds, and wherever the program stumbles over it, it is not shown.
#[test]
fn a_password_with_any_character_in_it_is_not_shown() {
    let ground = Ground::embedded();
    // In pieces that no message has.
    let passwords =
        ["Zqx Wvk", "Zqx/Wvk?9", "Zqx@Wvk#9", "93 Wvk", "Zqx:Wvk,9", "%zqWvk", "Zqx\nWvk"];
    for password in passwords {
        for (flag, scheme) in [
            ("--store", "postgres"),
            ("--store", "mysql"),
            ("--store", "mongodb"),
            ("--broker", "nats"),
            ("--broker", "amqp"),
            ("--broker", "redis"),
            ("--broker", "kafka"),
        ] {
            let url = format!("{scheme}://ann:{password}@127.0.0.1:1/x");
            for mut command in [
                ground.demo(&[flag, &url]),
                program::semel(&ground.file(""), ["doctor", flag, &url]),
                program::semel(&ground.file(""), ["doctor", &url]),
            ] {
                let ended = Ended::from(command.output().expect("the program can be started"));
                assert!(matches!(ended.code, Some(1 | 2 | 4)), "{url}: {ended:?}");
                for piece in ["Zqx", "Wvk", "93"] {
                    assert!(!ended.stdout.contains(piece), "{piece} of {url}: {}", ended.stdout);
                    assert!(!ended.stderr.contains(piece), "{piece} of {url}: {}", ended.stderr);
                }
            }
        }
    }
}

#[test]
fn the_store_of_a_service_is_left_alone() {
    let ground = Ground::embedded();
    std::fs::write(ground.file("semel.toml"), "[ledger]\nstore = \"sqlite:service.db\"")
        .expect("written");
    let log = ground.file("stderr");
    for by_file in [true, false] {
        let mut demo = match by_file {
            true => ground.demo(&["--config", "semel.toml"]),
            false => ground.demo(&[]),
        };
        if !by_file {
            demo.env("SEMEL_STORE", "sqlite:service.db");
        }
        demo.stderr(std::fs::File::create(&log).expect("a file"));
        drop(Service::start(demo));
        assert!(ground.file("semel-demo.db").exists() && !ground.file("service.db").exists());
        let said = std::fs::read_to_string(&log).expect("a file");
        assert!(said.contains("is not used") && said.contains("--store"), "{said}");
    }
    // Named by a flag it is used, without a warning.
    let mut demo = ground.demo(&["--store", "sqlite:service.db", "--config", "semel.toml"]);
    demo.stderr(std::fs::File::create(&log).expect("a file"));
    drop(Service::start(demo));
    assert!(ground.file("service.db").exists());
    let said = std::fs::read_to_string(&log).expect("a file");
    // On a busy machine the database may find a statement slow.
    let said: Vec<_> = said.lines().filter(|line| !line.contains("slow statement")).collect();
    assert_eq!(said, Vec::<&str>::new());
}

async fn left_alone(ground: Ground, indexes: &str) {
    // A database in which another program has a table of that name.
    drop(ground.start());
    for table in ["orders", "effects"] {
        ground.execute(&format!("DROP TABLE {table}")).await;
        ground.execute(&format!("CREATE TABLE {table} (id INTEGER, tenant_id INTEGER)")).await;
        ground.execute(&format!("INSERT INTO {table} VALUES (1, 2)")).await;
        let output = ground.demo(&[]).output().expect("the program can be started");
        let said = Ended::from(output).badly(2);
        let named = format!("its table `{table}` belongs to another program");
        assert!(said.contains(&named) && said.contains("--store"), "{said}");
        let made = format!("{indexes} = '{table}'");
        assert_eq!(ground.number(&made).await, 0, "no index of ours");
        ground.execute(&format!("DROP TABLE {table}")).await;
        // With its own it starts.
        drop(ground.start());
    }
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_sqlite() {
    let indexes = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'index' AND tbl_name";
    left_alone(Ground::embedded(), indexes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_postgres() {
    let indexes = "SELECT COUNT(*) FROM pg_indexes WHERE schemaname = 'public' AND tablename";
    left_alone(Ground::postgres("bus").await, indexes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_mysql() {
    let indexes = "SELECT COUNT(*) FROM information_schema.statistics \
                   WHERE table_schema = DATABASE() AND table_name";
    left_alone(Ground::mysql("bus").await, indexes).await;
}
