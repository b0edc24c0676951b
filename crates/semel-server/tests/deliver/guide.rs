//! The handler of the guide runs as it is printed, and handles each event once.

use std::process::{Command, Stdio};
use std::time::Duration;

use semel_servers::python;

use crate::fixture::{Fixture, PATIENCE, SECRET, event};

const GUIDES: [&str; 2] = [
    include_str!("../../../../docs/how-to/deliver-events-to-urls.md"),
    include_str!("../../../../docs/how-to/deliver-events-to-urls.zh-CN.md"),
];

/// Returns the first block of code in this language.
fn block(guide: &str, language: &str) -> String {
    let (_, code) = guide.split_once(&format!("```{language}\n")).unwrap();
    code.split_once("\n```").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_in_python_of_the_guide_handles_each_event_once() {
    let python = python::interpreter(&["standardwebhooks==1.0.0"]).unwrap();
    for guide in GUIDES {
        let fixture = Fixture::new().await;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        std::fs::write(fixture.file("shipping.py"), block(guide, "python")).unwrap();
        let mut handler = Command::new(&python)
            .arg("shipping.py")
            .current_dir(fixture.file("."))
            .env("WEBHOOK_SECRET", SECRET)
            .env("PORT", port.to_string())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let text = block(guide, "toml").replace("8081", &port.to_string());
        std::fs::write(fixture.file("semel.toml"), text + "\nbase_backoff = \"1ms\"").unwrap();
        let events: Vec<_> = (0..3).map(|number| event("order.paid", "ord_1", number)).collect();
        fixture.append(&events).await;
        let deliver = || {
            let mut command = fixture.deliver(&["--once"]);
            command.env("WEBHOOK_SECRET", SECRET).output().unwrap().status.success()
        };
        let parcels = || async {
            let url = format!("sqlite:{}", fixture.file("shipping.db").display());
            let mut side =
                <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
            let count = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM parcels");
            count.fetch_one(&mut side).await.unwrap()
        };
        let end = std::time::Instant::now() + PATIENCE;
        while !deliver() {
            assert!(std::time::Instant::now() < end, "the handler answers");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(parcels().await, 3);
        // Sent again, as after a crash: every effect is there already.
        let reset = "DELETE FROM semel_record WHERE scope = 'SHIPPING'";
        let url = format!("sqlite:{}", fixture.file("semel.db").display());
        let mut side = <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.unwrap();
        sqlx::query(reset).execute(&mut side).await.unwrap();
        fixture.semel(&["outbox", "republish", "--all", "--type", "order.paid", "--yes"]).well();
        assert!(deliver());
        assert_eq!(parcels().await, 3);
        handler.kill().unwrap();
        handler.wait().unwrap();
    }
}
