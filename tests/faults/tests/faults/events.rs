//! Relays and consumers that die, brokers that are killed, links that are cut: every committed
//! event is handled once by each group, in order. The long form is `cargo xtask faults events`.

use std::path::PathBuf;
use std::time::Duration;

use semel_faults::events::{self, Broker};
use semel_faults::harness;

const EVENTS: u64 = 240;
const KILLS: u32 = 10;

fn chain(store: &str, broker: &str, broker_lives: Option<Duration>) {
    harness::on(store, |private| async move {
        let settings = events::Settings {
            program: PathBuf::from(env!("CARGO_BIN_EXE_faults")),
            events: EVENTS,
            kills: KILLS,
            broker_lives,
        };
        let broker = Broker::named(broker).expect("a broker");
        let line = events::run(&private, broker, &settings).await.expect("a run");
        assert!(line.count("kills") >= u64::from(KILLS));
        assert!(line.count("rolled back") > 0, "nothing was rolled back");
        assert!(broker_lives.is_none() || line.count("broker deaths") > 0, "no broker died");
        line.assert_kept();
    });
}

mod faults_every_committed_event_is_handled_once_by_each_group {
    use super::{Duration, chain};

    #[test]
    fn sqlite_bus() {
        chain("sqlite", "bus", None);
    }

    #[test]
    fn postgres_nats() {
        chain("postgres", "nats", Some(Duration::from_secs(2)));
    }

    #[test]
    fn mysql_rabbitmq() {
        chain("mysql", "rabbitmq", Some(Duration::from_secs(2)));
    }

    #[test]
    fn postgres_streams() {
        chain("postgres", "streams", Some(Duration::from_secs(2)));
    }
}
