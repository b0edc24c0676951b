//! Aliases of settings: camelCase, kebab-case and Go's `DefaultTTL`, and the names and sections that
//! BlueCone and Genesis use.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::exit::ExitError;

/// The section, alias and name of each setting that has an alias. Only the name is documented.
const ALIASES: [(&str, &str, &str); 6] = [
    ("ledger", "default_ttl", "keep"),
    ("ledger", "lock_ttl", "lease"),
    ("ledger", "wait_timeout", "wait"),
    ("inbox", "lock_ttl", "lease"),
    ("inbox", "max_retry", "max_attempts"),
    ("relay", "max_retry", "max_attempts"),
];

/// Returns the name of the setting that `name` is an alias of, or `name`.
pub(super) fn canonical<'n>(section: &str, name: &'n str) -> &'n str {
    let alias = |(of, alias, _): &&(&str, &str, &str)| *of == section && *alias == name;
    ALIASES.iter().find(alias).map_or(name, |(_, _, canonical)| canonical)
}

/// Returns the same settings under canonical section and setting names.
pub(super) fn canonical_names(table: Table) -> Result<Table, ExitError> {
    let mut table = snake_case(table)?;
    if let Some(bluecone) = table.remove("bluecone") {
        let Value::Table(mut bluecone) = bluecone else {
            return Err(ExitError::usage("`bluecone` is a section, as in [bluecone.idresolve]"));
        };
        if let Some(resolving) = bluecone.remove("idresolve") {
            adopt(&mut table, "bluecone.idresolve", "idresolve", resolving)?;
        }
        if let Some(section) = bluecone.keys().next() {
            let there = match section.as_str() {
                "outbox" => "it is [relay] here: batch for dispatch-batch-size, keep for retention",
                _ => "see docs/how-to/from-the-originals.md for its name here",
            };
            return Err(ExitError::usage(format_args!(
                "[bluecone.{section}] is not read; {there}"
            )));
        }
    }
    if let Some(idem) = table.remove("idem") {
        adopt(&mut table, "idem", "ledger", idem)?;
    }
    if let Some(Value::Table(ledger)) = table.get("ledger")
        && ledger.contains_key("driver")
    {
        return Err(ExitError::usage(
            "`driver` is part of the store's address here: store = \"redis://host:6379\" or \
             store = \"memory:\"",
        ));
    }
    for (section, alias, name) in ALIASES {
        let Some(Value::Table(settings)) = table.get_mut(section) else { continue };
        let Some(value) = settings.remove(alias) else { continue };
        if settings.insert(name.to_owned(), value).is_some() {
            return Err(ExitError::usage(format_args!(
                "`{alias}` and `{name}` are one setting; give it once"
            )));
        }
    }
    Ok(table)
}

/// Moves a section to its canonical name.
fn adopt(table: &mut Table, alias: &str, name: &str, section: Value) -> Result<(), ExitError> {
    match table.insert(name.to_owned(), section) {
        None => Ok(()),
        Some(_) => Err(ExitError::usage(format_args!(
            "`{alias}` and `{name}` are one section; give it once"
        ))),
    }
}

/// Returns the same settings with names in snake_case, at every depth.
fn snake_case(table: Table) -> Result<Table, ExitError> {
    let (mut renamed, mut written) = (Table::new(), BTreeMap::<String, String>::new());
    for (name, value) in table {
        let converted = snake(&name);
        if let Some(other) = written.insert(converted.clone(), name.clone()) {
            return Err(ExitError::usage(format_args!(
                "`{other}` and `{name}` are one setting; give it once"
            )));
        }
        renamed.insert(converted, below(value)?);
    }
    Ok(renamed)
}

fn below(mut value: Value) -> Result<Value, ExitError> {
    if let Value::Array(items) = value {
        return items.into_iter().map(below).collect::<Result<_, _>>().map(Value::Array);
    }
    if let Value::Table(inner) = &mut value {
        *inner = snake_case(std::mem::take(inner))?;
    }
    Ok(value)
}

/// Converts `lockTtl`, `lock-ttl` and `LockTTL` to `lock_ttl`. An abbreviation is one word.
fn snake(name: &str) -> String {
    let mut converted = String::with_capacity(name.len() + 4);
    let letters: Vec<char> = name.chars().collect();
    for (at, letter) in letters.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| letters[at]);
        let after = letters.get(at + 1);
        let begins = letter.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase))
            });
        if begins {
            converted.push('_');
        }
        converted.push(if *letter == '-' { '_' } else { letter.to_ascii_lowercase() });
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_name_becomes_snake_case() {
        for (alias, name) in [
            ("lock_ttl", "lock_ttl"),
            ("lockTtl", "lock_ttl"),
            ("lock-ttl", "lock_ttl"),
            ("LockTTL", "lock_ttl"),
            ("DefaultTTL", "default_ttl"),
            ("TTLMax", "ttl_max"),
            ("l1MaxSize", "l1_max_size"),
            ("l2Url", "l2_url"),
            ("fallback-to-biz-table", "fallback_to_biz_table"),
            ("store", "store"),
        ] {
            assert_eq!(snake(alias), name, "{alias}");
        }
    }
}
