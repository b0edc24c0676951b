//! Tests of values on which other programs rely: ports, and the demo's protocol.

use std::collections::BTreeSet;

use crate::fixture::Scratch;
use crate::program::run;

#[test]
fn the_default_ports_do_not_change() {
    let scratch = Scratch::new();
    for (command, flag, address) in [
        ("demo", "--listen", "127.0.0.1:7070"),
        ("demo", "--grpc-listen", "127.0.0.1:7071"),
        ("demo", "--admin-listen", "127.0.0.1:7072"),
        ("gateway", "--listen", "127.0.0.1:7080"),
        ("gateway", "--admin-listen", "127.0.0.1:7090"),
    ] {
        let help = run(scratch.path(), [command, "--help"]).well();
        let about = help.split_once(&format!("      {flag} ")).map(|(_, about)| about);
        let about = about.and_then(|about| about.split("\n      --").next());
        let output = format!("[default: {address}]");
        assert!(about.is_some_and(|about| about.contains(&output)), "{command} {flag}: {help}");
    }
    let example = include_str!("../../../../semel.example.toml");
    for line in ["listen = \"127.0.0.1:7080\"", "admin_listen = \"127.0.0.1:7090\""] {
        assert!(example.contains(line), "{line}");
    }
}

/// The number of a field must never change, because other programs were built with it.
#[test]
fn the_demos_protocol_keeps_its_names_and_numbers() {
    let text = include_str!("../../proto/semel/demo/v1/orders.proto");
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let output: BTreeSet<&str> = lines.filter(|line| line.ends_with(';')).collect();
    let expected = [
        "syntax = \"proto3\";",
        "package semel.demo.v1;",
        "rpc CreateOrder(CreateOrderRequest) returns (Order);",
        "string sku = 1;",
        "uint32 quantity = 2;",
        "uint64 amount_cents = 3;",
        "string order_id = 1;",
        "string sku = 2;",
        "uint32 quantity = 3;",
        "uint64 amount_cents = 4;",
    ];
    assert_eq!(output, BTreeSet::from(expected));
    let (request, order) = text.split_once("message Order {").unwrap();
    assert!(request.contains("message CreateOrderRequest {") && request.contains("sku = 1"));
    assert!(order.contains("order_id = 1"), "each in its own message");
}
