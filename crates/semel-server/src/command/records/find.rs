//! Finds a record by its id, reference, digest or operation id.
//!
//! An id is one part of a key, so it may match several records. Flags narrow the search; a digest
//! matches one record.

use clap::Args;
use semel_core::store::{Cursor, Filter, Inspect as _, Listed, Page, Store as _};
use semel_core::{AnyStore, Entry, Kind, OperationId, Principal, State};
use serde_json::{Value, json};

use super::super::unread::Unread;
use super::super::watch::Watch;
use super::super::{shown, words};
use super::entry;
use crate::exit::ExitError;

/// The largest number of candidates that are shown.
pub(super) const SHOWN: usize = 50;
/// The number of records on one page.
const LOOK: u32 = 500;

/// The filters of records.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct RecordFilter {
    /// Select this kind: command, http, grpc, message or event
    #[arg(long, value_parser = words::kind)]
    kind: Option<Kind>,
    /// Select this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Select this operation; with --kind event, this consumer group and its handlers
    #[arg(long)]
    scope: Option<String>,
    /// Select this principal: `global`, or the first hex digits that lists show
    #[arg(long, value_name = "DIGITS", value_parser = digits)]
    principal: Option<String>,
    /// Select this state: running, succeeded, failed, dead, uncertain or discarded
    #[arg(long, value_parser = words::state)]
    state: Option<State>,
    /// Only records that are due to run
    #[arg(long)]
    due: bool,
}

fn digits(text: &str) -> Result<String, String> {
    let hex = !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    match text == "global" || hex {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("write `global`, or hex digits as lists show them".to_owned()),
    }
}

impl RecordFilter {
    pub(super) fn filter(&self) -> Filter {
        Filter {
            kind: self.kind,
            tenant: self.tenant.clone(),
            scope: self.scope.clone(),
            // A scope of HTTP is a path, and a path below another path is another operation.
            below: self.kind == Some(Kind::Event),
            state: self.state,
            due: self.due,
            ..Filter::default()
        }
    }

    /// Returns whether no filter is set.
    pub(super) fn is_open(&self) -> bool {
        let Self { kind, tenant, scope, principal, state, due } = self;
        let texts = [tenant, scope, principal];
        kind.is_none() && state.is_none() && !due && texts.iter().all(|part| part.is_none())
    }

    /// Returns the filters that are set, for an audit line.
    pub(super) fn json(&self) -> Value {
        let Self { kind, tenant, scope, principal, state, due } = self;
        let mut set = json!({});
        let texts = [
            ("kind", kind.map(Kind::name)),
            ("tenant", tenant.as_deref()),
            ("scope", scope.as_deref()),
            ("principal", principal.as_deref()),
            ("state", state.map(State::name)),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                set[name] = text.into();
            }
        }
        if *due {
            set["due"] = true.into();
        }
        set
    }

    /// Returns whether a key matches the principal of the filters. Stores cannot filter by
    /// principal.
    pub(super) fn matches_principal(&self, key: &semel_core::Key) -> bool {
        let shown = entry::principal(key.principal());
        match self.principal.as_deref() {
            None => true,
            Some("global") => shown.is_none(),
            Some(digits) => shown.is_some_and(|shown| shown.starts_with(digits)),
        }
    }

    /// Returns a page with at most `room` matching records. If a page has more, it is read again up
    /// to the first record that does not fit, because only the store can create a cursor.
    pub(super) async fn page(
        &self,
        ledger: &AnyStore,
        filter: &Filter,
        after: Option<&Cursor>,
        room: u32,
    ) -> Result<Page<Listed>, ExitError> {
        let mut ask = self.principal.as_ref().map_or(room, |_| room.max(LOOK));
        loop {
            let page = ledger.survey(filter, after, ask).await?;
            let matching =
                page.entries.iter().enumerate().filter(|(_, one)| self.matches_principal(&one.key));
            match matching.map(|(at, _)| at).nth(room as usize) {
                Some(at) => ask = u32::try_from(at).unwrap_or(room),
                None => return Ok(page),
            }
        }
    }

    /// Returns the key with this id, if the filters contain all its other parts.
    fn key(&self, id: &str) -> Option<semel_core::Key> {
        let principal = match self.principal.as_deref() {
            None | Some("global") => Principal::global(),
            Some(digits) => Principal::from_bytes(&words::unhex(digits)?)?,
        };
        let (tenant, scope) = (self.tenant.as_deref()?, self.scope.as_deref()?);
        semel_core::Key::new(self.kind?, tenant, scope, principal, id).ok()
    }
}

/// One record.
#[derive(Clone, Debug, Args)]
pub(super) struct Key {
    /// Id, reference, digest (8 to 64 hex digits) or operation id of the record
    key: String,
    #[command(flatten)]
    which: RecordFilter,
}

impl Key {
    pub(super) fn new(key: &str, which: RecordFilter) -> Self {
        Self { key: key.to_owned(), which }
    }

    pub(super) fn text(&self) -> &str {
        &self.key
    }

    /// Returns the tenant of the filters.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.which.tenant.as_deref()
    }

    /// Returns the matching record; an error if none or several match.
    pub(super) async fn one(&self, ledger: &AnyStore, json: bool) -> Result<Listed, ExitError> {
        let Matches { mut found, unread } = self.all(ledger).await?;
        match found.len() {
            0 => Err(self.unknown(&unread)),
            1 => Ok(found.remove(0)),
            _ => Err(self.ambiguous(&found, json)),
        }
    }

    pub(super) fn unknown(&self, unread: &Unread) -> ExitError {
        let words = format!(
            "no record has `{}` as its id, reference, digest or operation id{}",
            shown::clean(&self.key),
            if self.which.is_open() { "" } else { ", among those that match the flags" }
        );
        match unread.is_empty() {
            true => ExitError::usage(words),
            // The record may be one of the unreadable ones.
            false => ExitError::findings(format_args!("{words}; but {unread}")),
        }
    }

    /// Prints the candidates, and returns the error for an ambiguous text.
    pub(super) fn ambiguous(&self, found: &[Listed], json: bool) -> ExitError {
        let shown = match json {
            true => {
                let candidates: Vec<_> = found.iter().map(entry::json).collect();
                shown::json(&json!({ "candidates": candidates }))
            }
            false => entry::table(found, &[], semel_core::Clock::system().now()),
        };
        if let Err(failure) = shown {
            return failure;
        }
        let many = if found.len() >= SHOWN { "or more " } else { "" };
        ExitError::usage(format_args!(
            "`{}` matches {} {many}records; narrow it with --tenant, --scope, --kind or --principal, or \
             give the digest",
            shown::clean(&self.key),
            found.len()
        ))
    }

    /// Returns every matching record. The text is tried as an id, a reference, a digest and an
    /// operation id; the first interpretation that matches any record is used.
    pub(super) async fn all(&self, ledger: &AnyStore) -> Result<Matches, ExitError> {
        let (text, all) = (&self.key, self.which.filter());
        if self.which.principal.is_some()
            && let Some(key) = self.which.key(text)
            && let Some(found) = ledger.peek(&key).await?
        {
            let entry = Entry { key, record: found.record };
            if all.matches(&entry, found.now) {
                let found = vec![Listed::from(entry)];
                return Ok(Matches { found, unread: Unread::default() });
            }
        }
        let mut readings = vec![
            Filter { id: Some(text.clone()), ..all.clone() },
            Filter { reference: Some(text.clone()), ..all.clone() },
        ];
        if let Some(digest) = words::unhex(text).filter(|digest| (4..=32).contains(&digest.len())) {
            let by_digest = Filter { digest: Some(digest.clone()), ..all.clone() };
            // A whole digest is tried first: it is hardly anything else, and the store finds it at
            // once.
            let handle = if digest.len() == 32 { 0 } else { readings.len() };
            readings.insert(handle, by_digest);
        }
        if let Ok(operation) = text.parse::<OperationId>() {
            readings.push(Filter { operation: Some(operation), ..all });
        }
        let mut matches = Matches::default();
        for filter in &readings {
            self.look(ledger, filter, &mut matches).await?;
            if !matches.found.is_empty() {
                break;
            }
        }
        Ok(matches)
    }

    async fn look(
        &self,
        ledger: &AnyStore,
        filter: &Filter,
        Matches { found, unread }: &mut Matches,
    ) -> Result<(), ExitError> {
        let (mut watch, mut pages, mut after) = (Watch::new("looking", None), 0, None);
        loop {
            let page = ledger.survey(filter, after.as_ref(), LOOK).await?;
            unread.add(page.unreadable);
            for listed in page.entries {
                // A store may list a record twice.
                let known = found.iter().any(|other| other.key == listed.key);
                if !known && self.which.matches_principal(&listed.key) {
                    found.push(listed);
                }
            }
            pages += 1;
            watch.at(pages, None, || format!("{pages} pages so far"));
            after = page.next;
            if after.is_none() || found.len() >= SHOWN {
                found.sort_by(|a, b| a.key.scope().cmp(b.key.scope()));
                return Ok(());
            }
        }
    }
}

/// The records that match a text.
#[derive(Default)]
pub(super) struct Matches {
    pub(super) found: Vec<Listed>,
    /// The unreadable records that the search met.
    pub(super) unread: Unread,
}
