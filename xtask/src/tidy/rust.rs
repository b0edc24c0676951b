//! Rust source with everything that is not code blanked out.
//!
//! Checks of code thereby ignore comments that explain a rule and strings that test it.

/// Returns the source with comments, strings and character literals replaced by spaces; lines stay
/// lines.
pub(super) fn code(source: &str) -> String {
    blanked(source, false)
}

/// Returns the source with comments replaced by spaces; literals stay.
pub(super) fn without_comments(source: &str) -> String {
    blanked(source, true)
}

fn blanked(source: &str, keeps_literals: bool) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut before = ' ';
    while let Some(first) = rest.chars().next() {
        let length = match skipped(rest, before) {
            Some(length) if keeps_literals && !is_comment(rest) => {
                out.push_str(&rest[..length]);
                before = ' ';
                length
            }
            Some(length) => {
                let blank = rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' });
                out.extend(blank);
                before = ' ';
                length
            }
            None => {
                out.push(first);
                before = first;
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    out
}

fn is_comment(rest: &str) -> bool {
    rest.starts_with("//") || rest.starts_with("/*")
}

/// Returns the number of bytes from here on that are a comment or a literal, if any.
fn skipped(rest: &str, before: char) -> Option<usize> {
    let in_name = before.is_alphanumeric() || before == '_';
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    if rest.starts_with('"') {
        return Some(string(rest));
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    if in_name {
        return None;
    }
    // Prefixes: b"…", c"…", r"…", br#"…"#, cr"…", b'…'.
    let prefix = rest.find(|c| !matches!(c, 'b' | 'c' | 'r'))?;
    if prefix == 0 || prefix > 2 {
        return None;
    }
    let literal = &rest[prefix..];
    if rest[..prefix].ends_with('r') {
        return raw_string(literal).map(|length| prefix + length);
    }
    match literal.chars().next()? {
        '"' => Some(prefix + string(literal)),
        '\'' => character(literal).map(|length| prefix + length),
        _ => None,
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.find(|c| c != '#')?;
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &rest[..hashes]);
    Some(body.find(&end).map_or(rest.len(), |at| hashes + 1 + at + end.len()))
}

/// Returns the length of a character literal; `None` for a lifetime, which has no closing quote
/// after one character.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        // The escaped character itself may be a quote.
        chars.next()?;
        return chars.find(|(_, c)| *c == '\'').map(|(at, _)| at + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}

/// Returns the words of a line of code: names, keywords, numbers.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_only(source: &str, kept: &str) {
        let squeezed: Vec<String> = code(source).split_whitespace().map(str::to_owned).collect();
        assert_eq!(squeezed.join(" "), kept, "{source}");
        assert_eq!(code(source).lines().count(), source.lines().count());
    }

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        keeps_only("a // b\nc /* d /* e */ f\n */ g", "a c g");
        keeps_only(r#"a("b \" c") d"#, "a( ) d");
        keeps_only("a(r#\"b \" c\"#, br\"d\", b\"e\", c\"f\") g", "a( , , , ) g");
        keeps_only(r"f('a', '\'', '\u{1F600}', b'x', '\\') g", "f( , , , , ) g");
        keeps_only(
            "fn f<'a>(x: &'a str, y: &'static str) {}",
            "fn f<'a>(x: &'a str, y: &'static str) {}",
        );
        keeps_only("bar\"x\"; attr r#type", "bar ; attr r#type");
    }

    #[test]
    fn literals_stay_where_only_comments_are_blanked() {
        let kept = without_comments("a(\"b // c\") // d\n/* e */ f('\"')");
        assert_eq!(kept.split_whitespace().collect::<Vec<_>>().join(" "), "a(\"b // c\") f('\"')");
    }
}
