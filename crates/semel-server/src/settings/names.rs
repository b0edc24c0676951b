//! The seeds' camelCase names, as ours.

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::failure::Failure;

/// The same settings under our names, at every depth.
pub(super) fn snake_case(table: Table) -> Result<Table, Failure> {
    let (mut renamed, mut written) = (Table::new(), BTreeMap::<String, String>::new());
    for (name, value) in table {
        let ours = snake(&name);
        if let Some(other) = written.insert(ours.clone(), name.clone()) {
            return Err(Failure::usage(format_args!(
                "`{other}` and `{name}` are one setting; give it once"
            )));
        }
        renamed.insert(ours, below(value)?);
    }
    Ok(renamed)
}

fn below(mut value: Value) -> Result<Value, Failure> {
    if let Value::Array(items) = value {
        return items.into_iter().map(below).collect::<Result<_, _>>().map(Value::Array);
    }
    if let Value::Table(inner) = &mut value {
        *inner = snake_case(std::mem::take(inner))?;
    }
    Ok(value)
}

fn snake(name: &str) -> String {
    let mut ours = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            ours.push('_');
        }
        ours.push(letter.to_ascii_lowercase());
    }
    ours
}
