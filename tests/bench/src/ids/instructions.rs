//! The number of instructions of an L1 hit, counted by callgrind, which other load does not
//! disturb.

use std::process::Command;

use super::l1::{Bare, Warm};
use super::label;
use crate::BoxError;
use crate::report::{Report, Target};

/// Two lengths of a loop. Their difference in instructions comes from hits alone.
const LOOPS: [u64; 2] = [20_000, 60_000];

/// Runs a loop of hits: `resolver:COUNT` or `moka:COUNT`. The parent process counts its
/// instructions.
pub(crate) async fn count(what: &str) -> Result<(), BoxError> {
    let (who, hits) = what.split_once(':').ok_or("count resolver:N or moka:N")?;
    let hits: u64 = hits.parse()?;
    let warm = Warm::new().await?;
    let bare = Bare::new(&warm.ids);
    for number in 0..hits {
        match who {
            "resolver" => warm.hit(number).await?,
            _ => bare.hit(number)?,
        }
    }
    Ok(())
}

pub(super) fn bench(report: &mut Report) -> Result<(), BoxError> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!(
            "  valgrind is not installed: instructions are not counted (apt-get install valgrind)"
        );
        return Ok(());
    }
    let (ours, bare) = (instructions("resolver")?, instructions("moka")?);
    let label = label("resolve-l1 instructions", "", 1);
    let target = Some(Target::AtMost(1.2));
    report.compare(label, "count", &[ours], ("bare moka get", &[bare]), target);
    Ok(())
}

fn instructions(who: &str) -> Result<f64, BoxError> {
    let [short, long] = LOOPS.map(|hits| {
        let program = std::env::current_exe()?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(program)
            .args(["count", &format!("{who}:{hits}")])
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find_map(|line| line.split_once("Collected : "));
        let counted = line.and_then(|(_, count)| count.trim().parse::<f64>().ok());
        counted.ok_or_else(|| BoxError::from(format!("callgrind counted nothing: {said}")))
    });
    Ok((long? - short?) / (LOOPS[1] - LOOPS[0]) as f64)
}
