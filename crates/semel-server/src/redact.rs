//! Removes passwords and other secrets from URLs before they are shown.

/// Texts that occur in the names of secret parameters.
const SECRET: [&str; 4] = ["pass", "pwd", "secret", "token"];

/// Returns a URL without its password, for people and logs. A password may contain any character,
/// and the URL may be incomplete, so everything before the last `@` or after `password=` may be a
/// password. If both occur, only the scheme is shown.
pub(crate) fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.find("://").map(|end| url.split_at(end + 3)) {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        Some(_) | None => ("", url),
    };
    // The path of a file has no password, but may have an `@`.
    if url.trim_start_matches(QUOTES).starts_with("sqlite:") {
        return url.to_owned();
    }
    let (at, value) = (rest.rfind('@'), secret(rest));
    if at.zip(value).is_some_and(|(at, value)| at >= value) {
        return format!("{scheme}***");
    }
    let (shown, hidden) = match value {
        Some(value) => (&rest[..value], "***"),
        None => (rest, ""),
    };
    match at {
        Some(at) => {
            let (user, after) = shown.split_at(at);
            format!("{scheme}{}{after}{hidden}", user_alone(scheme, user))
        }
        None if scheme.is_empty() => format!("{shown}{hidden}"),
        None => match unfinished(shown) {
            Some(user) => format!("{scheme}{user}:***"),
            None => format!("{scheme}{shown}{hidden}"),
        },
    }
}

/// Characters that may stand in front of a URL in a message.
const QUOTES: [char; 5] = ['\'', '"', '`', '(', '['];

/// Returns whether `text`, which ends with `://`, is a scheme. A password may contain `://` too.
fn is_scheme(text: &str) -> bool {
    let name = text.trim_start_matches(QUOTES).trim_end_matches("://");
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// Returns the part before the `@` without the password.
fn user_alone(scheme: &str, user: &str) -> String {
    let plain = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-%+".contains(&byte))
    };
    match user.split_once(':') {
        Some((name, _)) if !scheme.is_empty() && plain(name) => format!("{name}:***"),
        // The text is an e-mail address or another text with an `@`.
        None if scheme.is_empty() => user.to_owned(),
        // A name without a password is a user of a database, but a token of NATS.
        None if (scheme.contains("sql") || scheme.contains("postgres")) && plain(user) => {
            user.to_owned()
        }
        Some(_) | None => "***".to_owned(),
    }
}

/// Returns the user name of a URL that has no `@`, if its first `:` is followed by something other
/// than a port: that text is taken for a password.
fn unfinished(rest: &str) -> Option<&str> {
    let host = &rest[..rest.find(['/', '?', '#', ',']).unwrap_or(rest.len())];
    // The colons of an address such as `[::1]` are not the first one after it.
    let address = if host.starts_with('[') { host.find(']').map_or(0, |end| end + 1) } else { 0 };
    let (name, port) = host[address..].split_once(':')?;
    // A quoted URL ends with its quote.
    let port = port.trim_end_matches(|end: char| !end.is_alphanumeric());
    let is_port = port.bytes().all(|digit| digit.is_ascii_digit());
    (!is_port).then_some(&host[..address + name.len()])
}

/// Returns the position at which the value of the first secret parameter begins.
fn secret(text: &str) -> Option<usize> {
    text.match_indices('=').map(|(at, _)| at + 1).find(|value| {
        let before = text[..value - 1].to_ascii_lowercase();
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c)).next();
        name.is_some_and(|name| SECRET.iter().any(|word| name.contains(word)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("postgres://ann:se:cr@et@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://ann:se cr et@db/shop", "postgres://ann:***@db/shop"),
            ("redis://:secret@cache:6379", "redis://:***@cache:6379"),
            ("postgres://ann@db/shop", "postgres://ann@db/shop"),
            ("postgres://ann:se/cr?et@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://ann:1/2?3@db/shop", "postgres://ann:***@db/shop"),
            ("postgres://db/x?user=a&password=pw&b=c", "postgres://db/x?user=a&password=***"),
            ("postgres://ann:pw@db/x?sslpassword=pw", "postgres://ann:***@db/x?sslpassword=***"),
            ("postgres://ann:pw@db/x?password=p@w", "postgres://***"),
            ("mysql://db/x?SSLPassword=pw", "mysql://db/x?SSLPassword=***"),
            ("host=db password=pw user=ann", "host=db password=***"),
            ("nats://token@broker:4222", "nats://***@broker:4222"),
            // The last of several hosts.
            ("nats://a:pw@one,nats://b:pw@two", "nats://a:***@two"),
            ("redis+cluster://:pw@a:1,:pw@b:2", "redis+cluster://:***@b:2"),
            ("ann:pw@db/shop", "***@db/shop"),
            ("jdbc:postgresql://ann:pw@db/shop", "***@db/shop"),
            // Without a host.
            ("postgres://ann:secret", "postgres://ann:***"),
            ("redis://ann:sec:ret", "redis://ann:***"),
            ("redis://ann:12:ret", "redis://ann:***"),
            ("redis://[::1]:sec:ret", "redis://[::1]:***"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            // A user with a password, or a parameter with an `@`: ambiguous.
            ("postgres://db:5432/shop?a=x@y", "postgres://db:***@y"),
            ("postgres://db:5432/shop?a=x", "postgres://db:5432/shop?a=x"),
            ("nats://one:4222,nats://[::1]:4222", "nats://one:4222,nats://[::1]:4222"),
            ("`redis://[::1]`:", "`redis://[::1]`:"),
            ("'root'@'localhost'", "'root'@'localhost'"),
            ("sqlite:semel.db", "sqlite:semel.db"),
            ("sqlite:/var/me@work/a.db", "sqlite:/var/me@work/a.db"),
            ("sqlite:///var/me@work/a.db", "sqlite:///var/me@work/a.db"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }
}
