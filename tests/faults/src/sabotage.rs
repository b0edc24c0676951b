//! Sabotage: removes every guard once; the tests of that guard must fail.
//!
//! A test that passes without its guard shows nothing. The tests are those of `tests/guards.rs`, each in
//! its own process, because a guard is removed for a whole process.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use semel_core::testing::{Guard, SABOTAGE};
use serde_json::Value;
use tokio::process::Command;

use crate::BoxError;
use crate::report::{Line, Report};

/// Longer than any of the tests takes with its guard.
const LIMIT: Duration = Duration::from_secs(120);
/// The exit code of a test program of which a test failed.
const RED: i32 = 101;

/// Returns the tests of a guard; each must fail without it.
pub const fn tests(guard: Guard) -> &'static [&'static str] {
    match guard {
        Guard::Fence => &[
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::memory",
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::sqlite",
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::postgres",
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::mysql",
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::redis",
            "fence::a_late_holder_is_refused_and_gets_the_winners_answer::redis_cluster",
        ],
        Guard::Spawn => &[
            "caller::a_caller_who_leaves_neither_doubles_nor_strands_the_work::memory",
            "caller::a_caller_who_leaves_neither_doubles_nor_strands_the_work::sqlite",
        ],
        Guard::Identity => &[
            "identity::keys_that_differ_in_one_byte_never_meet::sqlite",
            "identity::keys_that_differ_in_one_byte_never_meet::mysql",
        ],
        Guard::StoreClock => &[
            "clock::leases_follow_the_clock_that_the_store_was_given",
            "clock::a_lease_lapses_while_a_transaction_is_open",
            "clock::a_slow_link_does_not_shorten_a_lease",
        ],
        Guard::ExpiryFirst => &["judging::an_expired_key_takes_another_request"],
        Guard::FailureAfterRollback => &[
            "rollback::a_failure_is_on_record_after_its_transaction_rolled_back::sqlite",
            "rollback::a_failure_is_on_record_after_its_transaction_rolled_back::postgres",
            "rollback::a_failure_is_on_record_after_its_transaction_rolled_back::mysql",
        ],
        Guard::HeartbeatThread => &[
            "heartbeat::a_blocked_runtime_keeps_its_claim::memory",
            "heartbeat::a_blocked_runtime_keeps_its_claim::sqlite",
            "heartbeat::a_blocked_runtime_keeps_its_claim::postgres",
            "heartbeat::a_blocked_runtime_keeps_its_claim::mysql",
            "heartbeat::a_blocked_runtime_keeps_its_claim::redis",
            "heartbeat::a_blocked_runtime_keeps_its_claim::redis_cluster",
        ],
        Guard::Ambiguity => &[
            "replies::a_lost_reply_of_begin_is_found_out::memory",
            "replies::a_lost_reply_of_begin_is_found_out::sqlite",
            "replies::a_lost_reply_of_begin_is_found_out::postgres",
            "replies::a_lost_reply_of_begin_is_found_out::mysql",
            "replies::a_lost_reply_of_begin_is_found_out::redis",
            "replies::a_lost_reply_of_complete_is_found_out::sqlite",
        ],
        Guard::PublishBeforeMark => &["events::an_event_is_marked_after_the_broker_confirmed_it"],
        Guard::ClaimByState => &[
            "events::an_event_that_commits_late_is_published::postgres",
            "events::an_event_that_commits_late_is_published::mysql",
            "events::an_event_that_was_given_back_is_published::sqlite",
            "events::an_event_that_was_given_back_is_published::postgres",
            "events::an_event_that_was_given_back_is_published::mysql",
        ],
        Guard::CommitBeforeAck => &["events::a_broker_hears_of_an_event_after_the_ledger_has_it"],
        Guard::ClockJump => &[
            "clock::an_answer_survives_a_clock_that_jumps",
            "clock::a_claim_of_a_clock_that_jumped_lasts_for_its_lease",
        ],
        Guard::Version => &[
            "judging::of_rivals_who_judged_the_same_record_one_runs::sqlite",
            "judging::of_rivals_who_judged_the_same_record_one_runs::postgres",
            "judging::of_rivals_who_judged_the_same_record_one_runs::mysql",
            "judging::of_rivals_who_judged_the_same_record_one_runs::redis",
        ],
    }
}

/// Runs every guard's tests with and without it.
///
/// # Errors
/// The tests could not be built.
pub async fn run(release: bool) -> Result<Report, BoxError> {
    let program = build(release).await?;
    let mut report = Report::new("sabotage");
    for guard in Guard::ALL {
        for test in tests(guard) {
            eprintln!("{} …", guard.name());
            let with = outcome(&program, test, None).await?;
            let without = outcome(&program, test, Some(guard)).await?;
            let detected = with == TestResult::Green && without == TestResult::Red;
            report.lines.push(
                Line::new()
                    .column("guard", guard.name())
                    .column("with", with.name())
                    .column("without", without.name())
                    .column("detected", if detected { "yes" } else { "NO" })
                    .column("test", *test)
                    .promise(detected, &format!("{} is not detected by {test}", guard.name())),
            );
        }
    }
    Ok(report)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestResult {
    Green,
    Red,
    /// The test does not exist, or its process ended in another way.
    Broken,
    Hung,
}

impl TestResult {
    const fn name(self) -> &'static str {
        match self {
            TestResult::Green => "green",
            TestResult::Red => "red",
            TestResult::Broken => "broken",
            TestResult::Hung => "hung",
        }
    }
}

async fn outcome(
    program: &Path,
    test: &str,
    without: Option<Guard>,
) -> Result<TestResult, BoxError> {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--test-threads", "1"]).env_remove(SABOTAGE);
    if let Some(guard) = without {
        command.env(SABOTAGE, guard.name());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(output) = tokio::time::timeout(LIMIT, command.output()).await else {
        return Ok(TestResult::Hung);
    };
    let output = output?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(match output.status.code() {
        Some(0) if said.contains("1 passed") => TestResult::Green,
        Some(RED) if said.contains("1 failed") => TestResult::Red,
        _ => TestResult::Broken,
    })
}

/// Builds the tests; returns the path of their program.
async fn build(release: bool) -> Result<PathBuf, BoxError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "-p", "semel-faults", "--features", "testing", "--test", "guards"]);
    command.args(["--no-run", "--message-format", "json"]);
    if release {
        command.arg("--release");
    }
    let output = command.stderr(Stdio::inherit()).output().await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let program = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| {
            (message["target"]["name"] == "guards" && message["executable"].is_string())
                .then(|| PathBuf::from(message["executable"].as_str().unwrap_or_default()))
        });
    program.ok_or_else(|| "the guards' tests did not build; see above".into())
}
