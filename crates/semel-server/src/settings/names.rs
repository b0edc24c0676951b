//! The seeds' camelCase names, as ours.

use toml::{Table, Value};

use crate::failure::Failure;

/// The same settings under our names, at every depth.
pub(super) fn snake_case(table: Table) -> Result<Table, Failure> {
    let mut renamed = Table::new();
    for (name, value) in table {
        let ours = snake(&name);
        let value = match value {
            Value::Table(inner) => Value::Table(snake_case(inner)?),
            Value::Array(items) => Value::Array(
                items
                    .into_iter()
                    .map(|item| match item {
                        Value::Table(inner) => snake_case(inner).map(Value::Table),
                        other => Ok(other),
                    })
                    .collect::<Result<_, _>>()?,
            ),
            other => other,
        };
        if renamed.insert(ours.clone(), value).is_some() {
            return Err(Failure::usage(format_args!(
                "`{name}` and `{ours}` are one setting; give it once"
            )));
        }
    }
    Ok(renamed)
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
