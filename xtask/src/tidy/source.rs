//! Rust source with comments, strings and characters blanked, so that words and braces can be counted.

/// `text` with the same lines, in which all comments and literals are blanks.
pub(super) fn strip(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(&bytes, at);
        if end == at {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        for c in &bytes[at..end] {
            out.push(if *c == '\n' { '\n' } else { ' ' });
        }
        at = end;
    }
    out
}

/// End of the comment or literal that begins at `at`; `at` if none does.
fn literal_end(text: &[char], at: usize) -> usize {
    let next = |offset: usize| text.get(at + offset).copied().unwrap_or('\0');
    let is_word_before = at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_');
    match (text[at], next(1)) {
        ('/', '/') => find(text, at, |c| c == '\n'),
        ('/', '*') => block_comment_end(text, at),
        ('"', _) => string_end(text, at + 1),
        ('b' | 'c', '"') if !is_word_before => string_end(text, at + 2),
        ('r', '"' | '#') if !is_word_before => raw_string_end(text, at, at + 1),
        ('b' | 'c', 'r') if !is_word_before && matches!(next(2), '"' | '#') => {
            raw_string_end(text, at, at + 2)
        }
        ('b', '\'') if !is_word_before => character_end(text, at, at + 1),
        ('\'', _) => character_end(text, at, at),
        _ => at,
    }
}

fn find(text: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    text[from..]
        .iter()
        .position(|c| wanted(*c))
        .map_or(text.len(), |n| from + n)
}

fn block_comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut index) = (0, at);
    while index < text.len() {
        match (text[index], text.get(index + 1)) {
            ('/', Some('*')) => (depth, index) = (depth + 1, index + 2),
            ('*', Some('/')) => {
                (depth, index) = (depth - 1, index + 2);
                if depth == 0 {
                    return index;
                }
            }
            _ => index += 1,
        }
    }
    text.len()
}

fn string_end(text: &[char], from: usize) -> usize {
    let mut index = from;
    while index < text.len() {
        match text[index] {
            '\\' => index += 2,
            '"' => return index + 1,
            _ => index += 1,
        }
    }
    text.len()
}

fn raw_string_end(text: &[char], at: usize, hashes_at: usize) -> usize {
    let count = text[hashes_at..].iter().take_while(|c| **c == '#').count();
    let quote = hashes_at + count;
    if text.get(quote) != Some(&'"') {
        // A raw identifier.
        return at;
    }
    let is_end = |index: &usize| {
        text[*index] == '"'
            && text[index + 1..]
                .iter()
                .take(count)
                .filter(|c| **c == '#')
                .count()
                == count
    };
    (quote + 1..text.len())
        .find(is_end)
        .map_or(text.len(), |index| index + 1 + count)
}

/// A quote begins a character or a lifetime.
fn character_end(text: &[char], at: usize, quote: usize) -> usize {
    match (text.get(quote + 1), text.get(quote + 2)) {
        (Some('\\'), Some(_)) => (find(text, quote + 3, |c| c == '\'') + 1).min(text.len()),
        (Some(_), Some('\'')) => quote + 3,
        _ => at,
    }
}

/// Index of the first line of the file's test module, counted from 0; `None` if there is none.
pub(super) fn tests_begin(stripped: &str) -> Option<usize> {
    let lines: Vec<&str> = stripped.lines().collect();
    (0..lines.len()).find(|index| {
        lines[*index].starts_with("#[cfg(test)]")
            && lines[index + 1..]
                .iter()
                .find(|l| !l.trim_start().starts_with("#["))
                .is_some_and(|l| l.contains("mod ") && l.contains('{'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_become_blanks() {
        for (text, code) in [
            ("a // b {\nc", "a       \nc"),
            ("a /* x /* y */ { */ b", "a                   b"),
            (r#"f("x{\"y", 2)"#, "f(       , 2)"),
            ("f(b\"{\", c)", "f(    , c)"),
            ("r#\"a\"b\"#;", "        ;"),
            ("'{'; 'a: loop", "   ; 'a: loop"),
            ("'\\''; b'\\n'; '\\u{7f}'", "    ;      ;         "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("r#type", "r#type"),
            ("attr\"x\"", "attr   "),
        ] {
            assert_eq!(strip(text), code, "{text}");
        }
    }

    #[test]
    fn the_test_module_is_found() {
        assert_eq!(tests_begin("a\n#[cfg(test)]\nmod tests {\n}\n"), Some(1));
        assert_eq!(
            tests_begin("#[cfg(test)]\n#[allow(x)]\nmod tests {\n}\n"),
            Some(0)
        );
        assert_eq!(tests_begin("#[cfg(test)]\nuse x;\nfn f() {}\n"), None);
        assert_eq!(tests_begin("#[cfg(test)]\nmod tests;\n"), None);
    }
}
