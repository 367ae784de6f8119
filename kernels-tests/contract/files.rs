//! The files: each where its name says, each used, and the words that only one folder may have.

use super::collect::Found;
use super::{Outcome, extends, first};
use std::path::{Path, PathBuf};
use wgformer::ops::{FAMILIES, Family};

/// A text file.
pub struct File {
    /// Its place in the folder that was walked, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    fn stem(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("").split('.').next().unwrap_or("")
    }

    fn is_shared(&self) -> bool {
        self.path.starts_with("lib/")
    }
}

/// Files of `src/ops/` and `kernels-tests/cases/` that have no shader of their name, and why.
const WITHOUT_SHADER: [(&str, &str); 7] = [
    ("mod", "lists the others"),
    ("layout", "parts of values: nothing runs"),
    ("excerpt", "parts of an op that stand for the whole"),
    ("params", "the macro for parameter blocks"),
    ("random", "the reference of shaders/lib/random.wgsl"),
    ("rounding", "how f32 rounds"),
    ("rows", "what ops over rows share"),
];

/// Words that only some places of `src/` may have outside of comments: the word, the places. The program says of the file of
/// compiled pipelines in the user's folder that it may be trusted, which the library cannot know.
const WORDS: [(&str, &[&str]); 2] = [("wgpu::", &["gpu/"]), ("unsafe", &["gpu/", "cli/cache.rs"])];

/// All files of `shaders/`.
pub fn shaders() -> Vec<File> {
    walk("shaders")
}

/// The files of a folder of the project and the folders in it, by name.
fn walk(folder: &str) -> Vec<File> {
    fn visit(folder: &Path, prefix: &str, files: &mut Vec<File>) {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let name = format!("{prefix}{}", path.file_name().unwrap().to_string_lossy());
            if path.is_dir() {
                visit(&path, &format!("{name}/"), files);
            } else {
                let text =
                    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                files.push(File { path: name, text });
            }
        }
    }
    let mut files = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), "", &mut files);
    files
}

/// All that can be seen from the files alone.
pub fn of_the_project() -> Outcome {
    let (shaders, sources) = (shaders(), walk("src"));
    let (ops, cases) = (walk("src/ops"), walk("kernels-tests/cases"));
    let mut problems = listed(&shaders, FAMILIES);
    problems.extend(counterparts("src/ops", &ops, FAMILIES));
    problems.extend(counterparts("kernels-tests/cases", &cases, FAMILIES));
    let names = |files: &[File], name: &str| files.iter().any(|f| f.stem() == name);
    let needless = WITHOUT_SHADER.iter().filter(|(name, _)| !names(&ops, name) && !names(&cases, name));
    problems.extend(needless.map(|(name, _)| format!("{name} needs no exception: there is no such file")));
    problems.extend(words(&sources));
    let checked = shaders.len() + ops.len() + cases.len() + sources.len();
    if problems.is_empty() { Ok(checked) } else { Err(problems) }
}

/// The lines without `//` comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(|line| {
        let in_string = |at: usize| line[..at].matches('"').count() % 2 == 1;
        let comment = line.match_indices("//").map(|(at, _)| at).find(|&at| !in_string(at));
        &line[..comment.unwrap_or(line.len())]
    })
}

/// The entry points of a WGSL file, in order.
fn entries(text: &str) -> Vec<String> {
    let code: String = code(text).flat_map(|line| [line, "\n"]).collect();
    let after = code.split("@compute").skip(1);
    let name = |s: &str| s.split("fn ").nth(1).unwrap_or("").split('(').next().unwrap_or("").to_string();
    after.map(name).collect()
}

/// Shaders against the list of families: names, texts, entry points; and that `lib/` has functions only.
pub fn listed(shaders: &[File], families: &[Family]) -> Vec<String> {
    let mut problems = Vec::new();
    for f in families {
        let path = format!("{}.wgsl", f.name);
        match shaders.iter().find(|s| s.path == path) {
            Some(file) if file.text == f.source => (),
            Some(_) => problems.push(format!("{path} is not the text of the family {}", f.name)),
            None => problems.push(format!("there is no {path} for the family {}", f.name)),
        }
    }
    for file in shaders {
        let (path, has) = (&file.path, entries(&file.text));
        if file.is_shared() {
            let bound = code(&file.text).any(|line| line.contains("@group"));
            if bound || !has.is_empty() {
                problems.push(format!("{path} has bindings or entry points; lib/ is for functions"));
            }
        } else if let Some(family) = families.iter().find(|f| f.name == file.stem()) {
            let mut lists = family.entries.to_vec();
            let mut has: Vec<&str> = has.iter().map(String::as_str).collect();
            lists.sort_unstable();
            has.sort_unstable();
            if lists != has {
                problems.push(format!("{path} has the entry points {has:?}, FAMILIES lists {lists:?}"));
            }
        } else if !has.is_empty() || !families.iter().any(|f| extends(file.stem(), f.name)) {
            problems
                .push(format!("{path} is no family in FAMILIES, and no part of one without entry points"));
        }
    }
    problems
}

/// Each family, or the one whose name its own extends, has a file of its name in `folder`, and each file there a family or
/// a reason why not.
pub fn counterparts(folder: &str, files: &[File], families: &[Family]) -> Vec<String> {
    let mut problems = Vec::new();
    let file = |name: &str| files.iter().any(|f| f.path == format!("{name}.rs"));
    for f in families {
        if !file(f.name) && !families.iter().any(|g| extends(f.name, g.name) && file(g.name)) {
            problems.push(format!("there is no {folder}/{}.rs for the family of this name", f.name));
        }
    }
    for f in files.iter().filter(|f| !f.path.contains('/')) {
        let family = families.iter().any(|g| g.name == f.stem());
        if family == WITHOUT_SHADER.iter().any(|(name, _)| *name == f.stem()) {
            problems.push(format!("{folder}/{}: a shader of this name, or a reason why not", f.path));
        }
    }
    problems
}

/// Words outside of the folder that may have them.
pub fn words(sources: &[File]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in sources {
        for (number, line) in code(&file.text).enumerate() {
            for (word, places) in WORDS {
                let whole = |at: usize| {
                    let part = |c: char| c.is_alphanumeric() || c == '_';
                    !line[..at].ends_with(part) && !line[at + word.len()..].starts_with('_')
                };
                let allowed = places.iter().any(|place| file.path.starts_with(place));
                if !allowed && line.match_indices(word).any(|(at, _)| whole(at)) {
                    problems.push(format!(
                        "src/{}, line {}: {word} outside of src/{}",
                        file.path,
                        number + 1,
                        places.join(" and src/")
                    ));
                }
            }
        }
    }
    problems
}

/// Every shader file is a text of a kernel, every text of a kernel is a file, and the cases reach every entry point.
pub fn reached(shaders: &[File], families: &[Family], found: &[Found]) -> Outcome {
    let mut problems = Vec::new();
    let parts = |f: &Found| -> Vec<String> { f.kernel.parts.iter().map(|text| text.to_string()).collect() };
    let mut texts: Vec<String> = found.iter().flat_map(parts).collect();
    texts.sort_unstable();
    texts.dedup();
    for file in shaders.iter().filter(|file| !texts.contains(&file.text)) {
        problems.push(format!("shaders/{} is part of no kernel", file.path));
    }
    for text in texts.iter().filter(|text| shaders.iter().all(|file| file.text != **text)) {
        let line = text.lines().next().unwrap_or("");
        problems.push(format!("a kernel has a text that is no file of shaders/: {line}"));
    }
    for Found { kernel, .. } in found {
        if !families.iter().any(|f| f.name == first(&kernel.name)) {
            problems.push(format!("the kernel {} is named like no family", kernel.name));
        }
    }
    let mut checked = shaders.len();
    for f in families {
        for entry in f.entries {
            let reaches = |k: &Found| {
                k.by_case && k.kernel.entry == *entry && k.kernel.parts.iter().any(|text| *text == f.source)
            };
            checked += 1;
            if !found.iter().any(reaches) {
                problems.push(format!("no case reaches the entry point {entry} of shaders/{}.wgsl", f.name));
            }
        }
    }
    if problems.is_empty() { Ok(checked) } else { Err(problems) }
}
