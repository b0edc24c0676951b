//! A backfill copies a table into the id map while its processes are killed: every row arrives,
//! none twice. The long form is `cargo xtask faults backfill`.

use std::path::PathBuf;

use semel_faults::{backfill, harness};

const ROWS: u64 = 50_000;
const KILLS: u32 = 3;

fn killed(store: &str) {
    harness::on(store, |private| async move {
        let settings = backfill::Settings {
            program: PathBuf::from(env!("CARGO_BIN_EXE_faults")),
            rows: ROWS,
            batch: 500,
            kills: KILLS,
        };
        let line = backfill::run(&private, &settings).await.expect("a run");
        assert_eq!(line.count("kills"), u64::from(KILLS));
        assert!(line.count("rows after the last kill") > 0, "nothing was left to do");
        line.assert_kept();
    });
}

mod faults_a_killed_backfill_goes_on_and_loses_nothing {
    use super::killed;

    #[test]
    fn sqlite() {
        killed("sqlite");
    }

    #[test]
    fn postgres() {
        killed("postgres");
    }

    #[test]
    fn mysql() {
        killed("mysql");
    }
}
