//! Runs the demo and checks that it succeeds.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_card_is_charged_twice_whatever_callers_do() {
    tonic_payments::demo::run().await.expect("every check passes");
}
