//! Tests of the first screen, and of the one line of a demo that cannot start.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::fixture::Fixture;
use crate::program::{self, Ended, Service};

/// Returns the lines that the demo prints until `ready`.
fn screen(more: &[&str]) -> Vec<String> {
    let fixture = Fixture::embedded();
    let mut child = fixture.demo(more).stdout(Stdio::piped()).spawn().expect("started");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut printed: Vec<String> = Vec::new();
    for line in lines.map(|line| line.expect("text")) {
        printed.push(line);
        if printed.last().is_some_and(|line| line == "ready") {
            break;
        }
    }
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    printed
}

#[test]
fn the_first_screen_has_the_listeners_then_commands_then_ready() {
    let printed = screen(&[]);
    for (line, name) in printed.iter().zip(["orders", "grpc", "admin"]) {
        assert!(line.starts_with(&format!("{name}: http://127.0.0.1:")), "{printed:#?}");
    }
    let orders = printed[0].strip_prefix("orders: ").expect("a URL");
    assert!(
        printed.iter().any(|line| line.contains(&format!("curl -i {orders}/orders"))),
        "{printed:#?}"
    );
    assert!(printed.iter().any(|line| line.contains("sqlite:semel-demo.db")), "{printed:#?}");
    assert_eq!(printed.last().map(String::as_str), Some("ready"));
}

#[test]
fn the_admin_listener_can_be_turned_off() {
    let printed = screen(&["--admin-listen", "off"]);
    assert!(!printed.iter().any(|line| line.starts_with("admin")), "{printed:#?}");
}

/// Runs a demo that cannot start, and returns its one line of output.
#[track_caller]
fn refused(more: &[&str], code: i32) -> String {
    let fixture = Fixture::embedded();
    let output = fixture.demo(more).output().expect("the program can be started");
    Ended::from(output).badly(code)
}

#[test]
fn a_port_that_is_in_use_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for flag in ["--listen", "--grpc-listen", "--admin-listen"] {
        let printed = refused(&[flag, &address], 1);
        assert!(printed.contains(&format!("{flag}: cannot listen on {address}")), "{printed}");
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
        let printed = refused(more, 2);
        assert!(printed.starts_with("semel: ") && printed.contains(named), "{printed}");
        assert!(!printed.contains("secret"), "{printed}");
    }
}

#[test]
fn an_unreachable_server_is_reported_without_its_password() {
    for (flag, url, shown) in [
        ("--store", "postgres://ann:secret@127.0.0.1:1/x", "postgres://ann:***@127.0.0.1:1/x"),
        ("--store", "mysql://ann:secret@127.0.0.1:1/x", "mysql://ann:***@127.0.0.1:1/x"),
        ("--broker", "nats://ann:secret@127.0.0.1:1", "nats://ann:***@127.0.0.1:1"),
        ("--broker", "amqp://ann:secret@127.0.0.1:1/%2f", "amqp://ann:***@127.0.0.1:1/%2f"),
        ("--broker", "redis://ann:secret@127.0.0.1:1", "redis://ann:***@127.0.0.1:1"),
    ] {
        let printed = refused(&[flag, url], 4);
        assert!(printed.contains(shown) && !printed.contains("secret"), "{printed}");
    }
}

#[test]
fn a_file_that_cannot_be_a_database_is_unreachable_and_has_a_fix() {
    let fixture = Fixture::embedded();
    std::fs::write(fixture.file("letter"), "dear editor, this is no database at all")
        .expect("written");
    std::fs::create_dir(fixture.file("drawer")).expect("a directory");
    for (path, why, fix) in [
        ("nowhere/at/all.db", "there is no directory nowhere/at", "create it"),
        ("drawer", "it is a directory", "as in sqlite:drawer/semel.db"),
        ("letter", "it is not a SQLite database", "name one"),
        ("letter/a.db", "there is no directory letter", "name another"),
    ] {
        let store = format!("sqlite:{path}");
        for mut command in [
            fixture.demo(&["--store", &store]),
            program::semel(&fixture.file(""), ["doctor", "--store", &store]),
            program::semel(&fixture.file(""), ["migrate", "apply", "--store", &store]),
            program::semel(&fixture.file(""), ["records", "list", "--store", &store]),
        ] {
            let ended = Ended::from(command.output().expect("the program can be started"));
            let printed = ended.badly(4);
            assert!(printed.contains(&store), "{printed}");
            // A command that only reads does not print how to create the file.
            let absent = printed.contains("there is no such file") && path.contains('/');
            assert!(absent || (printed.contains(why) && printed.contains(fix)), "{printed}");
        }
    }
}

/// No password is shown, whatever its characters and wherever the program fails.
#[test]
fn a_password_with_any_character_in_it_is_not_shown() {
    let fixture = Fixture::embedded();
    // Passwords from parts that occur in no message.
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
                fixture.demo(&[flag, &url]),
                program::semel(&fixture.file(""), ["doctor", flag, &url]),
                program::semel(&fixture.file(""), ["doctor", &url]),
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
    let fixture = Fixture::embedded();
    std::fs::write(fixture.file("semel.toml"), "[ledger]\nstore = \"sqlite:service.db\"")
        .expect("written");
    let log = fixture.file("stderr");
    for by_file in [true, false] {
        let mut demo = match by_file {
            true => fixture.demo(&["--config", "semel.toml"]),
            false => fixture.demo(&[]),
        };
        if !by_file {
            demo.env("SEMEL_STORE", "sqlite:service.db");
        }
        demo.stderr(std::fs::File::create(&log).expect("a file"));
        drop(Service::start(demo));
        assert!(fixture.file("semel-demo.db").exists() && !fixture.file("service.db").exists());
        let printed = std::fs::read_to_string(&log).expect("a file");
        assert!(printed.contains("is not used") && printed.contains("--store"), "{printed}");
    }
    // A store that is given by a flag is used, without a warning.
    let mut demo = fixture.demo(&["--store", "sqlite:service.db", "--config", "semel.toml"]);
    demo.stderr(std::fs::File::create(&log).expect("a file"));
    drop(Service::start(demo));
    assert!(fixture.file("service.db").exists());
    let printed = std::fs::read_to_string(&log).expect("a file");
    // On a busy machine the database may find a statement slow.
    let printed: Vec<_> = printed.lines().filter(|line| !line.contains("slow statement")).collect();
    assert_eq!(printed, Vec::<&str>::new());
}

async fn left_alone(fixture: Fixture, indexes: &str) {
    // In this database another program has a table of the same name.
    drop(fixture.start());
    for table in ["orders", "effects"] {
        fixture.execute(&format!("DROP TABLE {table}")).await;
        fixture.execute(&format!("CREATE TABLE {table} (id INTEGER, tenant_id INTEGER)")).await;
        fixture.execute(&format!("INSERT INTO {table} VALUES (1, 2)")).await;
        let output = fixture.demo(&[]).output().expect("the program can be started");
        let printed = Ended::from(output).badly(2);
        let named = format!("its table `{table}` belongs to another program");
        assert!(printed.contains(&named) && printed.contains("--store"), "{printed}");
        let made = format!("{indexes} = '{table}'");
        assert_eq!(fixture.number(&made).await, 0, "the demo created no index");
        fixture.execute(&format!("DROP TABLE {table}")).await;
        // With its own table the demo starts.
        drop(fixture.start());
    }
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_sqlite() {
    let indexes = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'index' AND tbl_name";
    left_alone(Fixture::embedded(), indexes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_postgres() {
    let indexes = "SELECT COUNT(*) FROM pg_indexes WHERE schemaname = 'public' AND tablename";
    left_alone(Fixture::postgres("bus").await, indexes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_program_is_left_alone_on_mysql() {
    let indexes = "SELECT COUNT(*) FROM information_schema.statistics \
                   WHERE table_schema = DATABASE() AND table_name";
    left_alone(Fixture::mysql("bus").await, indexes).await;
}
