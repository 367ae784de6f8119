//! `printf` in WGSL: statements like `printf("row %u: sum %f", row, sum);`, which the language does not have. They are
//! taken out of the text before it is compiled, or, where they should print, turned into calls of functions that append to
//! a storage buffer.
//!
//! Both ways every line of the text stays on its line.

use super::instrument::Shader;
use super::text::{code, identifiers, line, parameter_list};
use crate::{Error, Result};
use naga::{BuiltIn, TypeInner};
use std::fmt::Write;
use std::ops::Range;

/// The room for messages, in words of four bytes. A message takes four, and one for each argument.
const WORDS: u32 = 1 << 16;

/// The text without its `printf` statements: what a program compiles that shares its shaders with tests.
///
/// ```
/// let text = "fn half(x: f32) -> f32 {\n    printf(\"half of %f\", x);\n    return 0.5 * x;\n}";
/// let plain = wgformer::testing::without_printf(text)?;
/// assert_eq!(plain, "fn half(x: f32) -> f32 {\n                            \n    return 0.5 * x;\n}");
/// # Ok::<(), wgformer::Error>(())
/// ```
///
/// # Errors
/// When a `printf` is no statement of its own, has no literal format, an unknown conversion, or another number of
/// arguments than conversions.
pub fn without_printf(wgsl: &str) -> Result<String> {
    Ok(Printf::parse(wgsl)?.silent)
}

/// A text and its `printf` statements.
#[derive(Debug)]
pub(super) struct Printf {
    /// The text without them.
    pub silent: String,
    source: String,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    /// From the word to behind the semicolon.
    all: Range<usize>,
    arguments: Range<usize>,
    format: Vec<Piece>,
}

/// A part of a format.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Number(Conversion),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conversion {
    U32,
    I32,
    F32,
    Hex,
    Bool,
}

impl Conversion {
    fn of(letter: char) -> Option<Conversion> {
        Some(match letter {
            'u' => Conversion::U32,
            'i' | 'd' => Conversion::I32,
            'f' => Conversion::F32,
            'x' => Conversion::Hex,
            'b' => Conversion::Bool,
            _ => return None,
        })
    }

    fn wgsl(self) -> &'static str {
        match self {
            Conversion::U32 | Conversion::Hex => "u32",
            Conversion::I32 => "i32",
            Conversion::F32 => "f32",
            Conversion::Bool => "bool",
        }
    }

    /// An argument's bits.
    fn bits(self, argument: &str) -> String {
        match self {
            Conversion::U32 | Conversion::Hex => argument.to_string(),
            Conversion::I32 | Conversion::F32 => format!("bitcast<u32>({argument})"),
            Conversion::Bool => format!("select(0u, 1u, {argument})"),
        }
    }

    fn text(self, word: u32) -> String {
        match self {
            Conversion::U32 => word.to_string(),
            Conversion::I32 => (word as i32).to_string(),
            Conversion::F32 => f32::from_bits(word).to_string(),
            Conversion::Hex => format!("{word:#x}"),
            Conversion::Bool => (word != 0).to_string(),
        }
    }
}

impl Printf {
    /// Finds the statements.
    ///
    /// # Errors
    /// As [`without_printf`].
    pub fn parse(source: &str) -> Result<Printf> {
        let code = code(source);
        let mut calls = Vec::new();
        let mut silent = String::new();
        let mut from = 0;
        for at in identifiers(&code, "printf") {
            let call = call(source, &code, at)
                .map_err(|problem| Error::config(format!("printf in line {}", line(source, at)), problem))?;
            silent.push_str(&source[from..at]);
            silent.extend(blank(&source[call.all.clone()]));
            from = call.all.end;
            calls.push(call);
        }
        silent.push_str(&source[from..]);
        Ok(Printf { silent, source: source.to_string(), calls })
    }

    /// Whether there is nothing to print.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The bytes of the buffer that messages go to, at first.
    pub fn buffer() -> Vec<u8> {
        // The number of words taken, and that of messages lost, are zero. No message begins with this number.
        let mut bytes = vec![0xff; 4 * (2 + WORDS as usize)];
        bytes[..8].fill(0);
        bytes
    }

    /// The text whose statements print, into a buffer at group 0 and `binding`. `shader` is the silent text.
    pub fn loud(&self, shader: &Shader, entry: &str, binding: u32) -> Result<String> {
        let mut text = String::new();
        let mut from = 0;
        for (number, call) in self.calls.iter().enumerate() {
            let arguments = &self.source[call.arguments.clone()];
            let _ = write!(text, "{}wgf_printf_{number}({arguments});", &self.source[from..call.all.start]);
            // The arguments keep their lines; those before and after them are made up for.
            let lines = |r: Range<usize>| self.source[r].matches('\n').count();
            let rest = lines(call.all.clone()) - lines(call.arguments.clone());
            text.extend(std::iter::repeat_n('\n', rest));
            from = call.all.end;
        }
        text.push_str(&self.source[from..]);
        let mut text = with_invocation(&text, shader, entry)?;
        let _ = write!(
            text,
            "\nstruct WgfPrinted {{ taken: atomic<u32>, lost: atomic<u32>, words: array<u32, {WORDS}> }}\n\
             @group(0) @binding({binding}) var<storage, read_write> wgf_printed: WgfPrinted;\n\
             var<private> wgf_invocation: vec3<u32>;\n\
             fn wgf_take(words: u32) -> u32 {{\n\
             if atomicLoad(&wgf_printed.taken) < {WORDS}u {{\n\
             let at = atomicAdd(&wgf_printed.taken, words);\n\
             if at + words <= {WORDS}u {{ return at; }}\n\
             }}\n\
             atomicAdd(&wgf_printed.lost, 1u);\n\
             return {WORDS}u;\n\
             }}\n"
        );
        for (number, call) in self.calls.iter().enumerate() {
            let conversions: Vec<_> = call.conversions().collect();
            let parameters: Vec<_> =
                conversions.iter().enumerate().map(|(i, c)| format!("a{i}: {}", c.wgsl())).collect();
            let _ = write!(
                text,
                "fn wgf_printf_{number}({}) {{\nlet at = wgf_take({}u);\nif at == {WORDS}u {{ return; }}\n\
                 wgf_printed.words[at] = {number}u;\nwgf_printed.words[at + 1u] = wgf_invocation.x;\n\
                 wgf_printed.words[at + 2u] = wgf_invocation.y;\nwgf_printed.words[at + 3u] = wgf_invocation.z;\n",
                parameters.join(", "),
                4 + conversions.len()
            );
            for (i, c) in conversions.iter().enumerate() {
                let _ = writeln!(text, "wgf_printed.words[at + {}u] = {};", 4 + i, c.bits(&format!("a{i}")));
            }
            text.push_str("}\n");
        }
        Ok(text)
    }

    /// The messages of a buffer, by invocation, and the number of those lost.
    pub fn messages(&self, bytes: &[u8]) -> (Vec<String>, u32) {
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        let Some(([_, lost], mut rest)) = words.split_first_chunk::<2>() else { return (Vec::new(), 0) };
        let mut found = Vec::new();
        while let Some(([number, x, y, z], arguments)) = rest.split_first_chunk::<4>() {
            let Some(call) = self.calls.get(*number as usize) else { break };
            let count = call.conversions().count();
            if arguments.len() < count {
                break;
            }
            let text = call.text(&arguments[..count]);
            found.push(([*z, *y, *x], format!("({x}, {y}, {z}) {text}")));
            rest = &arguments[count..];
        }
        // A stable sort: those of one invocation stay in order.
        found.sort_by_key(|(at, _)| *at);
        (found.into_iter().map(|(_, text)| text).collect(), *lost)
    }
}

impl Call {
    fn conversions(&self) -> impl Iterator<Item = Conversion> {
        self.format.iter().filter_map(|p| match p {
            Piece::Number(c) => Some(*c),
            Piece::Text(_) => None,
        })
    }

    fn text(&self, arguments: &[u32]) -> String {
        let mut arguments = arguments.iter();
        let piece = |p: &Piece| match p {
            Piece::Text(text) => text.clone(),
            Piece::Number(c) => arguments.next().map_or_else(String::new, |&w| c.text(w)),
        };
        self.format.iter().map(piece).collect()
    }
}

/// The characters of a text turned to spaces, but not its line breaks.
fn blank(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().map(|c| if c == '\n' { c } else { ' ' })
}

/// Reads a statement whose word stands at `at`.
fn call(source: &str, code: &str, at: usize) -> Result<Call, String> {
    let own = code[..at].trim_end();
    let inside = code[at + "printf".len()..].trim_start();
    if !own.ends_with([';', '{', '}']) || !inside.starts_with('(') {
        return Err("it is to be a statement of its own: printf(\"..\", ..);".into());
    }
    let open = code.len() - inside.len();
    let literal = code[open + 1..].trim_start();
    let start = code.len() - literal.len() + 1;
    let length = literal.strip_prefix('"').and_then(|rest| rest.find('"'));
    let length = length.ok_or("its format is to be a literal: printf(\"..\", ..);")?;
    let format = pieces(&source[start..start + length])?;

    let mut from = start + length + 1;
    let (mut count, mut depth) = (0, 0);
    let mut close = None;
    let mut begin = None;
    let mut comma = false;
    for (i, c) in code[from..].char_indices() {
        match c {
            ')' if depth == 0 => {
                close = Some(from + i);
                break;
            }
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '<' if begins_template(&code[..from + i]) => depth += 1,
            '>' if depth > 0 && in_template(&code[from..from + i]) => depth -= 1,
            ',' if depth == 0 => {
                begin = begin.or(Some(from + i + 1));
                comma = true;
                continue;
            }
            _ => {}
        }
        // The first character behind a comma begins an argument, so a last comma begins none.
        if comma && !c.is_whitespace() {
            count += 1;
            comma = false;
        }
    }
    let close = close.ok_or("its parentheses are not closed")?;
    let end = code[close + 1..].trim_start();
    if !end.starts_with(';') {
        return Err("it is to be a statement of its own, with a semicolon at its end".into());
    }
    from = begin.unwrap_or(close);
    let call = Call { all: at..code.len() - end.len() + 1, arguments: from..close, format };
    let needed = call.conversions().count();
    if needed != count {
        let text = &source[start..start + length];
        return Err(format!("\"{text}\" needs {needed} arguments, but has {count}"));
    }
    Ok(call)
}

/// Whether a `<` behind this text begins a list of types, not a comparison: only WGSL's own types and `bitcast` have such
/// lists.
fn begins_template(before: &str) -> bool {
    let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
    matches!(word, "array" | "bitcast" | "ptr" | "atomic" | "vec2" | "vec3" | "vec4")
        || (word.starts_with("mat") && word.len() == 6 && word.as_bytes()[4] == b'x')
}

/// Whether a `>` behind this text ends a list of types.
fn in_template(before: &str) -> bool {
    let mut open = 0;
    for (i, c) in before.char_indices() {
        match c {
            '<' if begins_template(&before[..i]) => open += 1,
            '>' if open > 0 => open -= 1,
            _ => {}
        }
    }
    open > 0
}

fn pieces(format: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        match c {
            '%' => match letters.next() {
                Some('%') => text.push('%'),
                Some(letter) if Conversion::of(letter).is_some() => {
                    if !text.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut text)));
                    }
                    pieces.extend(Conversion::of(letter).map(Piece::Number));
                }
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!(
                        "%{other} is unknown; there are %u (u32), %i (i32), %f (f32), %x (u32 in base 16), %b (bool) and %%"
                    ));
                }
            },
            '\\' => text.push(match letters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            }),
            c => text.push(c),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// The text whose entry keeps its global invocation id in `wgf_invocation`, where every function can read it.
fn with_invocation(text: &str, shader: &Shader, entry: &str) -> Result<String> {
    let wrong = |problem: &str| Error::config(format!("shader entry {entry:?}"), problem);
    let point = &shader.module.entry_points[shader.entry];
    let is_id =
        |b: &Option<naga::Binding>| matches!(b, Some(naga::Binding::BuiltIn(BuiltIn::GlobalInvocationId)));
    let mut known = None;
    for argument in &point.function.arguments {
        let Some(name) = argument.name.as_deref() else { continue };
        if is_id(&argument.binding) {
            known = Some(name.to_string());
        }
        if let TypeInner::Struct { members, .. } = &shader.module.types[argument.ty].inner {
            let member = members.iter().find(|m| is_id(&m.binding)).and_then(|m| m.name.as_deref());
            known = member.map(|m| format!("{name}.{m}")).or(known);
        }
    }
    let (open, close) =
        parameter_list(text, entry).ok_or_else(|| wrong("its parameter list was not found"))?;
    let body = text[close..].find('{').map(|i| close + i + 1).ok_or_else(|| wrong("it has no body"))?;
    let mut parameter = String::new();
    let id = known.unwrap_or_else(|| {
        let list = code(&text[open + 1..close - 1]);
        let comma = if list.trim().is_empty() || list.trim_end().ends_with(',') { "" } else { ", " };
        // On a line of its own, should the list end with a comment.
        let line = if text[open + 1..close - 1].contains("//") { "\n" } else { "" };
        parameter = format!("{line}{comma}@builtin(global_invocation_id) wgf_id: vec3<u32>");
        "wgf_id".into()
    });
    Ok(format!(
        "{}{parameter}{} wgf_invocation = {id};{}",
        &text[..close - 1],
        &text[close - 1..body],
        &text[body..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
fn helper(x: f32) -> f32 { // printf("not this one %u");
    printf("a ; ) \" // %f and 100 %%", x * (1.0 + x));
    return x;
}
@compute @workgroup_size(4)
fn main(@builtin(local_invocation_index) i: u32, // a comment
) {
    if i < 2u { printf("few %u %b", i, i == 1u); }
    /* printf( */ printf(
        "array %x %i",
        array<u32, 2>(1u, 255u)[1], // the second,
        -3,
    );
    printf("bare");
    y[i] = helper(f32(i));
}
"#;

    fn problem(statement: &str) -> String {
        let text = format!("fn f() {{\n    {statement}\n}}");
        Printf::parse(&text).unwrap_err().to_string()
    }

    #[test]
    fn statements_go_and_everything_else_stays() {
        let printf = Printf::parse(TEXT).unwrap();
        assert_eq!(printf.calls.len(), 4);
        let silent = &printf.silent;
        Shader::new(silent, "main").unwrap();
        assert_eq!(silent.lines().count(), TEXT.lines().count());
        assert!(silent.contains("// printf(\"not this one %u\");"), "{silent}");
        let gone = " ".repeat(r#"printf("few %u %b", i, i == 1u);"#.len());
        assert!(silent.contains(&format!("if i < 2u {{ {gone} }}")), "{silent}");
        assert_eq!(without_printf("fn my_printf() {}").unwrap(), "fn my_printf() {}");
    }

    #[test]
    fn loud_text_is_valid_and_keeps_its_lines() {
        let printf = Printf::parse(TEXT).unwrap();
        let shader = Shader::new(&printf.silent, "main").unwrap();
        let loud = printf.loud(&shader, "main", 1).unwrap();
        Shader::new(&loud, "main").unwrap_or_else(|e| panic!("{e}\n{loud}"));
        let line_of = |text: &str, what: &str| text.lines().position(|l| l.contains(what)).unwrap();
        // The entry's list ends with a comment, so its parameter takes a line.
        assert_eq!(line_of(&loud, "return x;"), line_of(TEXT, "return x;"));
        assert_eq!(line_of(&loud, "y[i] ="), line_of(TEXT, "y[i] =") + 1);
        let with_id = "@compute @workgroup_size(1) fn main(@builtin(global_invocation_id) g: vec3<u32>) { printf(\"%u\", g.x); }";
        let printf = Printf::parse(with_id).unwrap();
        let shader = Shader::new(&printf.silent, "main").unwrap();
        let loud = printf.loud(&shader, "main", 0).unwrap();
        Shader::new(&loud, "main").unwrap_or_else(|e| panic!("{e}\n{loud}"));
        assert!(loud.contains("wgf_invocation = g;"), "{loud}");
    }

    #[test]
    fn messages_are_read_by_invocation() {
        let printf = Printf::parse(TEXT).unwrap();
        let mut bytes = Printf::buffer();
        let (half, minus) = (0.5f32.to_bits(), -3i32 as u32);
        let words: [&[u32]; 5] =
            [&[16, 5], &[1, 7, 0, 0, 1, 1], &[0, 3, 1, 0, half], &[2, 3, 0, 0, 255, minus], &[3, 3, 0, 0]];
        let words = words.concat();
        bytes[..4 * words.len()].copy_from_slice(bytemuck::cast_slice(&words));
        let (messages, lost) = printf.messages(&bytes);
        let expected = [
            "(3, 0, 0) array 0xff -3",
            "(3, 0, 0) bare",
            "(7, 0, 0) few 1 true",
            "(3, 1, 0) a ; ) \" // 0.5 and 100 %",
        ];
        assert_eq!(messages, expected);
        assert_eq!(lost, 5);
    }

    #[test]
    fn mistakes_are_one_clear_line() {
        assert_eq!(
            problem("printf(\"a %u %f\", 1u);"),
            "printf in line 2: \"a %u %f\" needs 2 arguments, but has 1"
        );
        assert!(problem("printf(\"a\", 1u, 2u);").ends_with("needs 0 arguments, but has 2"));
        assert!(problem("printf(\"%s\", 1u);").contains("%s is unknown; there are %u"));
        assert!(problem("printf(\"%\");").contains("% is unknown"));
        assert!(problem("let x = printf(\"a\");").contains("statement of its own"));
        assert!(problem("printf(\"a\")").contains("semicolon"));
        assert!(problem("printf(format, 1u);").contains("literal"));
        assert!(problem("printf(\"a\", (1u;").contains("not closed"));
    }
}
