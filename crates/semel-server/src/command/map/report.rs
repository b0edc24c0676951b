//! The results of backfill, verify and repair, as text and as JSON.

use semel_ids::migration::{Backfilled, Refusals, Repaired, Sample, SampledCount, Verified};
use serde_json::{Value, json};

use super::super::shown;
use crate::exit::ExitError;

pub(super) fn backfilled(report: &Backfilled, dry: bool, json: bool) -> Result<(), ExitError> {
    let Backfilled { seen, written, already, refused, resumed } = report;
    if json {
        shown::json(&json!({
            "seen": seen, "written": written, "already": already, "resumed": resumed,
            "refused": refusals(refused), "complete": report.complete(), "dry_run": dry,
        }))?;
    } else {
        shown::line(plain(report, dry))?;
    }
    match report.complete() {
        true => Ok(()),
        false => Err(ExitError::findings(format_args!(
            "{} cannot be put into the map; the reasons are above",
            shown::counted(refused.count(), "row")
        ))),
    }
}

pub(super) fn verified(report: &Verified, json: bool) -> Result<(), ExitError> {
    if json {
        let Verified { rows, mappings, matched, .. } = report;
        shown::json(&json!({
            "rows": rows, "mappings": mappings, "matched": matched,
            "missing": tally(&report.missing), "mismatched": tally(&report.mismatched),
            "revoked": tally(&report.revoked), "extra": tally(&report.extra),
            "duplicated": tally(&report.duplicated), "unreadable": refusals(&report.unreadable),
            "clean": report.clean(),
        }))?;
    } else {
        shown::line(plain(report, false))?;
    }
    match report.wrong() {
        0 => Ok(()),
        wrong => Err(ExitError::findings(format_args!(
            "{} between map and table; `semel map repair` repairs what can be repaired",
            shown::counted(wrong, "difference")
        ))),
    }
}

pub(super) fn repaired(
    report: &Repaired,
    dry: bool,
    not_propagated: u64,
    json: bool,
) -> Result<(), ExitError> {
    if json {
        let Repaired { rows, mappings, withheld, undone, .. } = report;
        shown::json(&json!({
            "rows": rows, "mappings": mappings, "withheld": withheld, "undone": undone,
            "inserted": tally(&report.inserted), "overwritten": tally(&report.overwritten),
            "revived": tally(&report.revived), "revoked": tally(&report.revoked),
            "left_revoked": tally(&report.left_revoked), "left_young": tally(&report.left_young),
            "unreadable": refusals(&report.unreadable), "not_propagated": not_propagated,
            "finished": report.finished(), "dry_run": dry,
        }))?;
    } else {
        shown::line(plain(report, dry))?;
    }
    let note = Some(not_propagated).filter(|count| *count > 0 && !dry).map(|count| {
        format!(
            "{count} changes were not propagated to the shared cache: running services may use old \
             entries until they expire (idresolve.cache.l2_url names the cache)"
        )
    });
    let left = "not everything was repaired; what is left for a later run or for your decision is listed above";
    match (report.finished(), note) {
        (true, None) => Ok(()),
        (true, Some(note)) => {
            shown::aside(note);
            Ok(())
        }
        (false, None) => Err(ExitError::findings(left)),
        (false, Some(note)) => Err(ExitError::findings(format_args!("{left}; {note}"))),
    }
}

fn plain(report: &impl std::fmt::Display, dry: bool) -> String {
    let text: Vec<String> = report.to_string().lines().map(shown::clean).collect();
    match dry {
        true => format!("dry run, nothing was written\n{}", text.join("\n")),
        false => text.join("\n"),
    }
}

fn refusals(refusals: &Refusals) -> Value {
    let reasons: serde_json::Map<String, Value> =
        refusals.iter().map(|(reason, counted)| (reason.to_string(), tally(counted))).collect();
    json!({ "count": refusals.count(), "reasons": reasons })
}

fn tally(tally: &SampledCount) -> Value {
    let sample = |sample: &Sample| {
        let Sample { key, tenant, public, note } = sample;
        json!({ "key": key, "tenant": tenant, "public_id": public, "note": note })
    };
    let samples: Vec<Value> = tally.samples.iter().map(sample).collect();
    json!({ "count": tally.count, "samples": samples })
}
