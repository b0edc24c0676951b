//! The first screen, and the one line of a demo that cannot start.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;

use crate::ground::Ground;
use crate::program::Ended;

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
fn who_wants_no_admin_listener_has_none() {
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
fn what_cannot_be_meant_is_refused_in_one_line() {
    for (more, named) in [
        (&["--store", "mongodb://ann:secret@db/x"][..], "is no store"),
        (&["--store", "memory:"], "use sqlite:PATH"),
        (&["--store", "redis://:secret@127.0.0.1:1"], "--broker redis://"),
        (&["--broker", "kafka://ann:secret@x"], "is no broker"),
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
fn a_file_that_is_no_database_is_named() {
    let said = refused(&["--store", "sqlite:/nowhere/at/all.db"], 1);
    assert!(said.contains("cannot open sqlite:/nowhere/at/all.db"), "{said}");
}
