//! Tests of the code that is generated from the demo's .proto file.

use std::path::Path;

const FILE: &str = "semel/demo/v1/orders.proto";

#[test]
fn the_code_of_the_proto_file_is_up_to_date() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let directory = std::env::temp_dir().join(format!("semel-proto-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let described = protox::compile([FILE], [&protos]).unwrap();
    // Clients have their own channel; the program only serves.
    let builder = tonic_prost_build::configure().build_transport(false).out_dir(&directory);
    builder.compile_fds(described).unwrap();
    let generated = std::fs::read_to_string(directory.join("semel.demo.v1.rs")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let path = protos.join(FILE).with_extension("rs");
    if std::env::var_os("SEMEL_TEST_REWRITE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap();
    assert!(
        checked_in == generated,
        "{} differs from its .proto file; rewrite it: SEMEL_TEST_REWRITE=1 cargo nextest run -p \
         semel-server --all-features -E 'test(the_code_of_the_proto_file)'",
        path.display()
    );
}
