//! Settings from `SEMEL_*` variables: `SEMEL_LEDGER__LEASE=30s`.

use toml::{Table, Value};

use super::names;
use crate::exit::ExitError;

const PREFIX: &str = "SEMEL_";
/// Prefixes of variables that are not settings but belong to tests and benchmarks.
const OTHERS: [&str; 3] = ["SEMEL_TEST_", "SEMEL_SABOTAGE", "SEMEL_BENCH_"];

/// Returns whether Kubernetes has set a variable for a Service whose name begins with `semel`:
/// `SEMEL_SERVICE_HOST`, `SEMEL_PORT`, `SEMEL_GATEWAY_PORT_7080_TCP_ADDR`.
fn is_of_a_service(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let is_url = || {
        let scheme = value.split_once("://").map(|(scheme, _)| scheme.to_ascii_uppercase());
        scheme.is_some_and(|scheme| PROTOCOLS.contains(&scheme.as_str()))
    };
    // `…_PORT_7080_TCP`, and its parts.
    let about = ["_ADDR", "_PORT", "_PROTO"].iter().find_map(|about| name.strip_suffix(about));
    let of_a_port = |name: &str| {
        let (number, protocol) = name.rsplit_once("_PORT_")?.1.split_once('_')?;
        let known = number.parse::<u16>().is_ok() && PROTOCOLS.contains(&protocol);
        known.then_some(())
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && is_url()
        || [Some(name), about].into_iter().flatten().any(|name| of_a_port(name).is_some())
}

/// Returns the variables that may be settings; an error if one of them is not UTF-8.
pub(super) fn variables() -> Result<Vec<(String, String)>, ExitError> {
    let ours = |name: &str| name.starts_with(PREFIX);
    let named =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let read = |(name, value): (String, std::ffi::OsString)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(ExitError::usage(format_args!("the variable {name} is not UTF-8"))),
    };
    named.filter(|(name, _)| ours(name)).map(read).collect()
}

/// Overrides the settings of the file with the variables.
pub(super) fn override_with(
    table: &mut Table,
    variables: impl Iterator<Item = (String, String)>,
) -> Result<(), ExitError> {
    for (name, value) in variables {
        if !name.starts_with(PREFIX) || OTHERS.iter().any(|other| name.starts_with(other)) {
            continue;
        }
        if is_of_a_service(&name, &value) {
            continue;
        }
        // The variable of the store has a short name too.
        let path = match name.as_str() {
            "SEMEL_STORE" => "ledger__store".to_owned(),
            other => other[PREFIX.len()..].to_ascii_lowercase(),
        };
        let unknown = || {
            ExitError::usage(format_args!(
                "the variable {name} is not a setting; join section and name with two underscores, \
                 as in SEMEL_LEDGER__LEASE"
            ))
        };
        let (sections, leaf) = path.rsplit_once("__").ok_or_else(unknown)?;
        let mut innermost = &mut *table;
        for section in sections.split("__") {
            let below = innermost.entry(section).or_insert_with(|| Value::Table(Table::new()));
            innermost = below.as_table_mut().ok_or_else(unknown)?;
        }
        innermost.insert(names::canonical(sections, leaf).to_owned(), parsed(&value));
        // Each variable is checked at once, so that the error contains its name.
        super::ServerSettings::from_table(table.clone())
            .map_err(|failure| failure.during(format_args!("the variable {name}")))?;
    }
    Ok(())
}

/// Converts the text of a variable: numbers, booleans and lists are recognised by their form.
fn parsed(value: &str) -> Value {
    let written = format!("value = {value}");
    match written.parse::<Table>().ok().and_then(|mut table| table.remove("value")) {
        Some(known @ (Value::Integer(_) | Value::Boolean(_) | Value::Array(_))) => known,
        Some(_) | None => Value::String(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overridden(file: &str, variables: &[(&str, &str)]) -> Result<Table, String> {
        let mut table: Table = file.parse().unwrap();
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        override_with(&mut table, variables).map(|()| table).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_variable_overrides_the_file() {
        let file = "[ledger]\nlease = \"1s\"\nprefix = \"a:\"";
        let table = overridden(file, &[("SEMEL_LEDGER__LOCK_TTL", "2s"), ("HOME", "x")]).unwrap(); // an alias
        assert_eq!(table["ledger"]["lease"].as_str(), Some("2s"));
        assert_eq!(table["ledger"]["prefix"].as_str(), Some("a:"));
        let table =
            overridden("", &[("SEMEL_STORE", "memory:"), ("SEMEL_RELAY__BATCH", "7")]).unwrap();
        assert_eq!(table["ledger"]["store"].as_str(), Some("memory:"));
        assert_eq!(table["relay"]["batch"].as_integer(), Some(7));
    }

    #[test]
    fn an_unknown_variable_is_refused_by_name() {
        for name in ["SEMEL_LOCK_TTL", "SEMEL_LEDGER__LOCK", "SEMEL_X__Y", "SEMEL_"] {
            let refused = overridden("", &[(name, "30s")]).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
        assert!(overridden("", &[("SEMEL_TEST_SERVERS", "1")]).is_ok());
    }

    #[test]
    fn variables_of_a_kubernetes_service_are_no_settings() {
        let set = [
            ("SEMEL_SERVICE_HOST", "10.0.0.1"),
            ("SEMEL_SERVICE_PORT", "7080"),
            ("SEMEL_SERVICE_PORT_HTTP_ADMIN", "7090"),
            ("SEMEL_PORT", "tcp://10.0.0.1:7080"),
            ("SEMEL_PORT_7080_TCP", "tcp://10.0.0.1:7080"),
            ("SEMEL_PORT_7080_TCP_PROTO", "tcp"),
            ("SEMEL_PORT_7080_TCP_PORT", "7080"),
            ("SEMEL_PORT_7080_TCP_ADDR", "10.0.0.1"),
            ("SEMEL_GATEWAY_PORT", "udp://10.0.0.1:7080"),
            ("SEMEL_GATEWAY_PORT_7080_UDP_ADDR", "10.0.0.1"),
            ("SEMEL__LEDGER_SERVICE_HOST", "10.0.0.1"),
        ];
        assert_eq!(overridden("", &set).unwrap(), Table::new());
        for (name, value) in [("SEMEL_PORT", "7080"), ("SEMEL_PORT_TCP", "x"), ("SEMEL_HOST", "x")]
        {
            let refused = overridden("", &[(name, value)]).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
