//! Multipart bodies (RFC 2046, 5.1; RFC 7578), compared part by part, because clients choose a new
//! boundary for every attempt.
//!
//! Parsing is strict. A body that two parsers could divide differently (no last boundary, lines
//! that end in a bare LF, text before the first part or after the last) is not divided.

use semel_core::Fingerprint;

/// The greatest length of a boundary (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;
/// The largest number of parts that are compared one by one. A body with more is compared by its
/// bytes.
const MAX_PARTS: usize = 4_096;

/// One part of a body, in the form in which it is compared.
#[derive(Debug, PartialEq)]
pub(super) struct Part<'b> {
    /// The name of the form field, if the body is a form.
    name: Option<Vec<u8>>,
    /// The header lines of the part, ordered by name, with names in lower case.
    head: Vec<(Vec<u8>, &'b [u8])>,
    data: &'b [u8],
}

/// Returns the parts of a body: the parts of a form ordered by name, others in the order of the
/// body. Returns `None` if strict parsing fails.
pub(super) fn read<'b>(content_type: &str, form: bool, body: &'b [u8]) -> Option<Vec<Part<'b>>> {
    let boundary = boundary(content_type)?;
    let delimiter = [b"\r\n--", &boundary[..]].concat();
    // The body must start with the first boundary.
    let mut rest = body.strip_prefix(&delimiter[2..])?;
    let mut parts = Vec::new();
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            let over = end.is_empty() || end == b"\r\n";
            return (over && !parts.is_empty()).then(|| ordered(parts, form));
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let end = find(rest, &delimiter)?;
        parts.push(part(&rest[..end], form)?);
        if parts.len() > MAX_PARTS {
            return None;
        }
        rest = &rest[end + delimiter.len()..];
    }
}

/// Returns the fingerprint of a list of parts.
pub(super) fn print(parts: &[Part<'_>]) -> Fingerprint {
    let prints: Vec<Fingerprint> = parts
        .iter()
        .map(|part| {
            let mut all: Vec<&[u8]> = vec![part.data];
            for (name, value) in &part.head {
                all.extend([&name[..], value]);
            }
            Fingerprint::of_parts(&all)
        })
        .collect();
    let mut all: Vec<&[u8]> = vec![b"multipart"];
    all.extend(prints.iter().map(Fingerprint::as_bytes));
    Fingerprint::of_parts(&all)
}

fn ordered(mut parts: Vec<Part<'_>>, form: bool) -> Vec<Part<'_>> {
    // Servers build lists from the order of such parts.
    let builds_lists = |part: &Part<'_>| {
        part.name.as_deref().is_some_and(|name| name.windows(2).any(|two| two == b"[]"))
    };
    if form && !parts.iter().any(builds_lists) {
        // The sort is stable: the order of one name's values matters.
        parts.sort_by(|one, two| one.name.cmp(&two.name));
    }
    parts
}

/// Returns the parameter `boundary` of a content type, which must occur exactly once.
fn boundary(content_type: &str) -> Option<Vec<u8>> {
    let (_, parameters) = content_type.split_once(';')?;
    let boundary = parameter(parameters.as_bytes(), b"boundary")?;
    let fits = (1..=MAX_BOUNDARY).contains(&boundary.len()) && !boundary.ends_with(b" ");
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (fits && boundary.iter().all(plain)).then_some(boundary)
}

fn part(text: &[u8], form: bool) -> Option<Part<'_>> {
    // A part without header lines begins with an empty line.
    let (head, data) = match text.strip_prefix(b"\r\n") {
        Some(data) => (&text[..0], data),
        None => {
            let end = find(text, b"\r\n\r\n")?;
            (&text[..end], &text[end + 4..])
        }
    };
    let mut lines = Vec::new();
    let mut rest = head;
    while !rest.is_empty() {
        let end = find(rest, b"\r\n").unwrap_or(rest.len());
        let line = &rest[..end];
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let token = |byte: &u8| byte.is_ascii_graphic() && *byte != b':';
        // Refuses folded lines, which begin with a space, and a bare CR or LF, which some parsers
        // take for the end of a line.
        if name.is_empty()
            || !name.iter().all(token)
            || value.iter().any(|it| b"\r\n\0".contains(it))
        {
            return None;
        }
        lines.push((name.to_ascii_lowercase(), value));
        rest = rest.get(end + 2..).unwrap_or_default();
    }
    lines.sort_by(|one, two| one.0.cmp(&two.0));
    let name = match form {
        true => Some(field(&lines)?),
        false => None,
    };
    Some(Part { name, head: lines, data })
}

/// Returns the name of a form field from the only `Content-Disposition` of the part.
fn field(head: &[(Vec<u8>, &[u8])]) -> Option<Vec<u8>> {
    let mut found = head.iter().filter(|(name, _)| name == b"content-disposition");
    let (_, value) = found.next().filter(|_| found.next().is_none())?;
    let at = value.iter().position(|byte| *byte == b';')?;
    parameter(&value[at + 1..], b"name")
}

/// Returns the value of the parameter `wanted`. Returns `None` if it does not occur exactly once,
/// or if any parameter cannot be parsed.
fn parameter(mut text: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    let mut found = None;
    loop {
        text = text.trim_ascii_start();
        if text.is_empty() {
            return found;
        }
        let equals = text.iter().position(|byte| *byte == b'=')?;
        let name = text[..equals].trim_ascii().to_ascii_lowercase();
        text = text[equals + 1..].trim_ascii_start();
        let value = match text.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, rest) = unquoted(quoted)?;
                text = rest.trim_ascii_start();
                value
            }
            None => {
                let end = text.iter().position(|byte| *byte == b';').unwrap_or(text.len());
                let value = text[..end].trim_ascii_end().to_vec();
                text = &text[end..];
                value
            }
        };
        if name == wanted && found.replace(value).is_some() {
            return None;
        }
        match text.split_first() {
            None => return found,
            Some((b';', rest)) => text = rest,
            Some(_) => return None,
        }
    }
}

/// Returns the text up to the closing quote, and the rest after it.
fn unquoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some((value, &text[at + 1..])),
            // Some clients escape quotes and backslashes with a backslash; browsers do not escape
            // backslashes.
            b'\\' if matches!(text.get(at + 1), Some(b'"' | b'\\')) => {
                value.push(text[at + 1]);
                at += 2;
            }
            byte => {
                value.push(*byte);
                at += 1;
            }
        }
    }
}

/// Returns the position of the first `needle` in `text`.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.iter().position(|byte| *byte == first)?;
        if text[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(boundary: &str, fields: &[(&str, &str)]) -> (String, String) {
        let part = |(head, data): &(&str, &str)| {
            format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{data}\r\n")
        };
        let body = fields.iter().map(part).collect::<String>() + &format!("--{boundary}--\r\n");
        (format!("multipart/form-data; boundary={boundary}"), body)
    }

    fn shown((content_type, body): &(String, String)) -> Option<Fingerprint> {
        read(content_type, true, body.as_bytes()).map(|parts| print(&parts))
    }

    const NOTE: (&str, &str) = ("name=note", "hello\r\n--not a boundary");
    const FILE: (&str, &str) = ("name=\"file\"; filename=\"a;b.txt\"", "\0\r\n\r\n\u{ff}");

    #[test]
    fn the_boundary_and_the_order_of_fields_make_no_difference() {
        let one = shown(&form("xYz", &[NOTE, FILE]));
        assert!(one.is_some());
        assert_eq!(one, shown(&form("----WebKitFormBoundary7MA4", &[FILE, NOTE])));
        let quoted = form("a b:c", &[NOTE, FILE]);
        assert_eq!(one, shown(&(quoted.0.replace("a b:c", "\"a b:c\""), quoted.1)));
    }

    #[test]
    fn every_part_and_every_header_of_it_makes_a_difference() {
        let one = shown(&form("x", &[NOTE, FILE]));
        let others = [
            form("x", &[NOTE]),
            form("x", &[NOTE, FILE, FILE]),
            form("x", &[("name=note2", NOTE.1), FILE]),
            form("x", &[("name=note; filename=n", NOTE.1), FILE]),
            form("x", &[("name=note", "hello"), FILE]),
            form("x", &[("name=note\r\nContent-Type: text/html", NOTE.1), FILE]),
        ];
        for other in &others {
            assert!(shown(other).is_some() && shown(other) != one, "{other:?}");
        }
        let twice = |one, two| shown(&form("x", &[("name=a", one), ("name=a", two)]));
        assert_ne!(twice("1", "2"), twice("2", "1"), "the order of one name's values matters");
    }

    #[test]
    fn parts_that_are_no_form_keep_their_order() {
        let kind = "multipart/mixed; boundary=x";
        let mixed = |one: &str, two: &str| {
            let body = format!("--x\r\n\r\n{one}\r\n--x\r\n\r\n{two}\r\n--x--");
            read(kind, false, body.as_bytes()).map(|parts| print(&parts)).expect("two parts")
        };
        assert_eq!(mixed("a", "b"), mixed("a", "b"));
        assert_ne!(mixed("a", "b"), mixed("b", "a"));
    }

    #[test]
    fn bodies_that_parsers_may_divide_differently_are_not_divided() {
        let (kind, body) = form("x", &[NOTE, FILE]);
        for damaged in [
            body.replacen("--x\r\n", "hello\r\n--x\r\n", 1),
            body.replace("--x--\r\n", ""),
            format!("{body}more"),
            body.replacen("\r\n", "\n", 1),
            body.replacen("--x\r\n", "--x \r\n", 1),
            body.replacen("form-data; name=note", "form-data; name=note; name=b", 1),
            body.replacen("form-data; name=note", "form-data", 1),
            body.replacen("form-data; name=note", "form-data;\r\n name=note", 1),
            "--x--\r\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(shown(&(kind.clone(), damaged.clone())), None, "{damaged:?}");
        }
        for kind in
            ["multipart/form-data", "multipart/form-data; boundary=", "x; boundary=x; boundary=y"]
        {
            assert_eq!(shown(&(kind.to_owned(), body.clone())), None, "{kind}");
        }
        assert!(shown(&(kind, body)).is_some());
    }
}
