//! Real processes that die at any point of their work, or stop past their lease.

use std::path::PathBuf;
use std::time::Duration;

use semel_faults::child::Mode;
use semel_faults::{crash, harness, zombie};

const KILLS: u32 = 20;
const STOPS: u32 = 3;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_faults"))
}

fn crash(store: &str, mode: Mode) {
    harness::on(store, |private| async move {
        let lease = Duration::from_millis(500);
        let settings = crash::Settings { program: program(), mode, kills: KILLS, lease };
        let line = crash::run(&private, &settings).await.expect("a run");
        assert!(line.count("kills") >= u64::from(KILLS));
        assert!(line.count("effects") > 0, "nothing was done");
        line.assert_kept();
    });
}

fn zombie(store: &str, mode: Mode) {
    harness::on(store, |private| async move {
        let lease = Duration::from_secs(1);
        let settings = zombie::Settings { program: program(), mode, stops: STOPS, lease };
        let line = zombie::run(&private, &settings).await.expect("a run");
        assert_eq!(line.count("stops"), u64::from(STOPS));
        assert!(line.count("takeovers") > 0, "nothing was taken over");
        line.assert_kept();
    });
}

mod faults_a_dying_process_leaves_every_effect_exactly_once {
    use super::{Mode, crash};

    #[test]
    fn sqlite_transact() {
        crash("sqlite", Mode::Transact);
    }

    #[test]
    fn sqlite_claim_first() {
        crash("sqlite", Mode::ClaimFirst);
    }

    #[test]
    fn postgres_transact() {
        crash("postgres", Mode::Transact);
    }

    #[test]
    fn postgres_claim_first() {
        crash("postgres", Mode::ClaimFirst);
    }

    #[test]
    fn mysql_transact() {
        crash("mysql", Mode::Transact);
    }

    #[test]
    fn mysql_claim_first() {
        crash("mysql", Mode::ClaimFirst);
    }

    #[test]
    fn mysql9_transact() {
        crash("mysql9", Mode::Transact);
    }

    #[test]
    fn mysql9_claim_first() {
        crash("mysql9", Mode::ClaimFirst);
    }
}

mod faults_a_dying_process_leaves_one_outcome_per_key {
    use super::{Mode, crash};

    #[test]
    fn sqlite() {
        crash("sqlite", Mode::Run);
    }

    #[test]
    fn redis() {
        crash("redis", Mode::Run);
    }

    #[test]
    fn redis_cluster() {
        crash("redis-cluster", Mode::Run);
    }
}

mod faults_what_dies_or_panics_is_done_at_most_once {
    use super::{Mode, crash};

    #[test]
    fn sqlite() {
        crash("sqlite", Mode::Hold);
    }

    #[test]
    fn postgres() {
        crash("postgres", Mode::Hold);
    }

    #[test]
    fn mysql() {
        crash("mysql", Mode::Hold);
    }

    #[test]
    fn redis() {
        crash("redis", Mode::Hold);
    }
}

mod faults_a_zombie_cannot_complete {
    use super::{Mode, zombie};

    #[test]
    fn sqlite() {
        zombie("sqlite", Mode::Run);
    }

    #[test]
    fn postgres() {
        zombie("postgres", Mode::Run);
    }

    #[test]
    fn postgres_claim_first() {
        zombie("postgres", Mode::ClaimFirst);
    }

    #[test]
    fn mysql() {
        zombie("mysql", Mode::Run);
    }

    #[test]
    fn mysql_claim_first() {
        zombie("mysql", Mode::ClaimFirst);
    }

    #[test]
    fn mysql9() {
        zombie("mysql9", Mode::Run);
    }

    #[test]
    fn mysql9_claim_first() {
        zombie("mysql9", Mode::ClaimFirst);
    }

    #[test]
    fn redis() {
        zombie("redis", Mode::Run);
    }

    #[test]
    fn redis_cluster() {
        zombie("redis-cluster", Mode::Run);
    }
}
