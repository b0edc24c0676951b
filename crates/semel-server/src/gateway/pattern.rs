//! The patterns of routes, and the normal form of a request's path.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Refuses a path that is not a pattern. The error contains the pattern that was probably expected.
pub(super) fn check(path: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err("a path begins with a slash".to_owned());
    }
    let last = path.split('/').count() - 1;
    let expected: Vec<Cow<'_, str>> =
        path.split('/').enumerate().map(|(n, part)| translated(part, n == last)).collect();
    let expected = expected.join("/");
    if expected.contains(['?', '#']) {
        return Err("a path has no query and no fragment: the route matches all of them".to_owned());
    }
    match expected == path {
        true => Ok(()),
        false => Err(format!(
            "{{name}} is one part and {{*rest}} all that follow; write it as {expected}"
        )),
    }
}

/// Translates one part of a path from the notation of other tools: `:id`, `<int:id>`,
/// `{id:[0-9]+}`, `*`, `**`, `*rest`, `{rest...}`, `{rest+}`, `{**rest}`, `{rest:path}` and `(.*)`.
fn translated(part: &str, last: bool) -> Cow<'_, str> {
    let ours = |name: &str, rest: bool| {
        let name: String = name.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
        match (rest && last, name.is_empty()) {
            (true, true) => Cow::Borrowed("{*rest}"),
            (true, false) => Cow::Owned(format!("{{*{name}}}")),
            (false, true) => Cow::Borrowed("{part}"),
            (false, false) => Cow::Owned(format!("{{{name}}}")),
        }
    };
    if let Some(name) = part.strip_prefix(':') {
        return ours(name, name.ends_with(['*', '+']));
    }
    if let Some(name) = part.strip_prefix('*') {
        return ours(name, true);
    }
    if ["(.*)", "(.+)", ".*", ".+"].contains(&part) {
        return ours("", true);
    }
    if let Some(inside) = part.strip_prefix('<').and_then(|part| part.strip_suffix('>')) {
        let (kind, name) = inside.split_once(':').unwrap_or(("", inside));
        return ours(name, kind == "path");
    }
    let Some(inside) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
        return Cow::Borrowed(part);
    };
    let name = inside.strip_prefix('*').unwrap_or(inside);
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if inside.contains(['{', '}']) || !name.is_empty() && name.chars().all(plain) {
        return Cow::Borrowed(part);
    }
    let (name, kind) = name.split_once(':').unwrap_or((name, ""));
    let many = inside.starts_with('*')
        || kind.is_empty() && inside.ends_with(['+', '*'])
        || inside.ends_with("...")
        || ["path", ".*", ".+"].contains(&kind);
    ours(name, many)
}

/// Returns whether a path is already in its normal form. Most paths are: they are matched once and
/// not copied.
pub(super) fn is_plain(path: &str) -> bool {
    let odd = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    let bytes = path.as_bytes();
    let plain = |byte: &u8| {
        byte.is_ascii() && !byte.is_ascii_uppercase() && !matches!(byte, b'%' | b'\\' | b';')
    };
    bytes.iter().all(plain)
        && !bytes.windows(2).any(odd)
        && (bytes.len() == 1 || !path.ends_with('/'))
}

/// Returns the normal form of a path, as a lenient server may interpret it: escapes decoded, empty
/// and dot segments and parameters (`/orders;v=1`) removed, case folded.
pub(super) fn plain(path: &str) -> String {
    let read = percent_decode_str(path).decode_utf8_lossy();
    let mut segments = Vec::new();
    for segment in read.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    folded(&format!("/{}", segments.join("/")))
}

/// Folds the case of a text, also of letters with several lower-case or upper-case forms.
fn folded(text: &str) -> String {
    text.to_uppercase().to_lowercase()
}

/// Returns the pattern for [`plain`] paths. Patterns that differ only in case or in the names of
/// their parameters become the same.
pub(super) fn folded_pattern(pattern: &str) -> String {
    let (mut ours, mut count) = (String::with_capacity(pattern.len()), 0);
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inside, behind)) = after.split_once('}') else { break };
        let star = if inside.starts_with('*') { "*" } else { "" };
        ours.push_str(&folded(before));
        ours.push_str(&format!("{{{star}p{count}}}"));
        count += 1;
        rest = behind;
    }
    ours + &folded(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_of_another_tool_is_refused_with_the_right_notation() {
        for (theirs, ours) in [
            ("/orders/:id", "/orders/{id}"),
            ("/orders/:id/pay", "/orders/{id}/pay"),
            ("/b/*", "/b/{*rest}"),
            ("/b/**", "/b/{*rest}"),
            ("/b/*path", "/b/{*path}"),
            ("/a/*/b", "/a/{part}/b"),
            ("/files/:path*", "/files/{*path}"),
            ("/orders/<id>", "/orders/{id}"),
            ("/orders/<int:id>", "/orders/{id}"),
            ("/files/<path:rest>", "/files/{*rest}"),
            ("/orders/{id:[0-9]+}", "/orders/{id}"),
            ("/files/{rest:path}", "/files/{*rest}"),
            ("/files/{rest...}", "/files/{*rest}"),
            ("/files/{proxy+}", "/files/{*proxy}"),
            ("/files/{**rest}", "/files/{*rest}"),
            ("/orders/{id?}", "/orders/{id}"),
            ("/files/(.*)", "/files/{*rest}"),
            ("/orders/{}", "/orders/{part}"),
        ] {
            let refused = check(theirs).unwrap_err();
            assert!(refused.ends_with(&format!("write it as {ours}")), "{theirs}: {refused}");
            assert_eq!(check(ours), Ok(()), "{ours}");
        }
        for ours in
            ["/", "/a", "/a/{id}", "/{*rest}", "/v1/a:b", "/$batch", "/a(1)", "/a/{order-id}"]
        {
            assert_eq!(check(ours), Ok(()), "{ours}");
        }
        assert!(check("orders").is_err() && check("/a?b=c").is_err());
    }

    #[test]
    fn patterns_that_differ_in_case_or_names_are_one() {
        assert_eq!(folded_pattern("/Orders/{Id}/Pay"), "/orders/{p0}/pay");
        assert_eq!(folded_pattern("/orders/{x}/{*Rest}"), "/orders/{p0}/{*p1}");
        assert_eq!(plain("/OR%44ERS/\u{212a}/x"), "/orders/k/x");
    }
}
