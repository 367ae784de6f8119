//! The program as a person meets it: what it prints, what it leaves, and above all how it fails.

mod kept;
mod training;
mod translating;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A model that every machine trains in seconds.
const TINY: &[&str] = &[
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--feed-forward",
    "32",
    "--batch-size",
    "8",
    "--steps",
    "4",
];
/// What the sentences of [`corpus`] need.
const CHARACTERS: &[&str] = &[
    "--source-tokenizer",
    "chars",
    "--target-tokenizer",
    "chars",
    "--max-source",
    "32",
    "--max-target",
    "16",
];

/// A corpus of a few dates.
fn corpus() -> &'static Path {
    static CORPUS: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &CORPUS
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("dates.tsv");
            let pairs = wgformer::text::dates::generate(5, 200);
            let lines: String =
                pairs.iter().map(|pair| format!("{}\t{}\n", pair.source, pair.target)).collect();
            fs::write(&path, lines).unwrap();
            (folder, path)
        })
        .1
}

fn wgformer() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("wgformer"));
    command.stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    wgformer().current_dir(folder).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The one line of an error; panics where the run did not fail as every run should.
fn error_of(output: &Output) -> String {
    let said = text(&output.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(errors.len(), 1, "{said}");
    assert_eq!(said.lines().last(), Some(errors[0]), "{said}");
    assert!(
        !said.contains("panicked") && !said.contains("backtrace") && !said.contains("internal error"),
        "{said}"
    );
    errors[0].to_string()
}

#[track_caller]
fn fails(folder: &Path, arguments: &[&str], parts: &[&str]) {
    let error = error_of(&run(folder, arguments));
    for part in parts {
        assert!(error.contains(part), "{error}, expected {part}");
    }
}

#[track_caller]
fn succeeds(output: Output) -> Output {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    output
}

fn train(folder: &Path, options: &[&str]) -> Output {
    let corpus = ["train", "--model", "model", "--train", corpus().to_str().unwrap()];
    run(folder, &[&corpus, TINY, CHARACTERS, options].concat())
}

/// A folder with a trained model in it, made once.
fn trained() -> &'static Path {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &MODEL
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            succeeds(train(folder.path(), &[]));
            let model = folder.path().join("model");
            (folder, model)
        })
        .1
}

/// A copy of the trained model.
fn copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(trained()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Interrupts a program once a line of its standard error begins like this: its output, and what standard error says after
/// that line.
#[cfg(unix)]
fn interrupted_at(command: &mut Command, begin: &str) -> (Output, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with(begin) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "no line begins with {begin:?}");
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        let _ = said.read_to_string(&mut rest);
        rest
    });
    let output = child.wait_with_output().unwrap();
    (output, reader.join().unwrap())
}

#[test]
fn every_verb_has_help_with_examples() {
    let here = Path::new(".");
    for verb in ["info", "train", "translate", "plan", "check", "tune"] {
        let help = text(&succeeds(run(here, &[verb, "--help"])).stdout);
        assert!(help.contains("Examples:") && help.contains(&format!("wgformer {verb}")), "{help}");
    }
    assert_eq!(run(here, &["nonsense"]).status.code(), Some(2));
    assert_eq!(run(here, &["train", "--steps", "many"]).status.code(), Some(2));
}

#[test]
fn info_names_the_adapter_and_its_kernels() {
    let here = Path::new(".");
    let said = text(&succeeds(run(here, &["info"])).stdout);
    assert!(
        said.contains("backend") && said.contains("largest binding") && said.contains("matmul"),
        "{said}"
    );
    let said = text(&succeeds(run(here, &["info", "--json"])).stdout);
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(list[0]["limits"]["max_binding_bytes"].as_u64().unwrap() >= 128 << 20, "{said}");
    assert!(list[0]["kernels"]["matmul"].as_array().is_some_and(|variants| !variants.is_empty()), "{said}");
}

/// The folder of golden files.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels-tests/golden")
}

#[test]
fn check_compares_the_kernels_with_golden_files() {
    let golden = golden();
    let options = ["check", "--golden", golden.to_str().unwrap(), "--filter"];
    let output = succeeds(run(Path::new("."), &[&options[..], &["softmax_"]].concat()));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 6, "{said}");
    for line in &lines[..5] {
        assert!(line.starts_with("softmax_") && line.contains("  ok  "), "{said}");
    }
    assert_eq!(lines[5], "5 passed, 0 failed");
    assert!(text(&output.stderr).starts_with("adapter: "));
    fails(Path::new("."), &[&options[..], &["nothing"]].concat(), &["no case's name matches", "nothing"]);
}

#[test]
fn check_says_of_every_kernel_whether_it_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let output = succeeds(run(folder.path(), &["check", "--filter", "^cache_write$"]));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("cache_write  ok "), "{said}");
    assert_eq!(lines[1..], ["1 ok, 0 wrong, 0 not runnable"]);
    assert!(text(&output.stderr).contains("adapter: "));

    let output = succeeds(run(folder.path(), &["check", "--json", "--filter", "^cache_write$"]));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["kernels"][0]["kernel"], "cache_write");
    assert_eq!(json["kernels"][0]["status"], "ok");
    assert_eq!((&json["ok"], &json["wrong"]), (&1.into(), &0.into()));

    // Kernels of 16-bit floats run, or it is said why not.
    let output = succeeds(run(folder.path(), &["check", "--filter", "^cache_write/f16$"]));
    let said = text(&output.stdout);
    let line = said.lines().next().unwrap();
    let runs = line.starts_with("cache_write/f16  ok ");
    assert!(runs || line.contains("not runnable") && line.contains("SHADER_F16"), "{said}");

    fails(folder.path(), &["check", "--filter", "("], &["--filter"]);
    fails(folder.path(), &["check", "--filter", "no such kernel"], &["no kernel's name matches"]);
}

#[test]
fn check_fails_where_a_golden_file_differs_or_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fails(here, &["check", "--golden", "missing"], &["index.json", "there is no such file"]);
    fs::write(here.join("index.json"), "{").unwrap();
    fails(here, &["check", "--golden", "."], &["index.json", "is no valid JSON"]);
    fs::write(here.join("index.json"), "{}").unwrap();
    fails(here, &["check", "--golden", "."], &["names no case"]);
    fs::write(
        here.join("index.json"),
        r#"{"softmax_3x7": {}, "softmax_other": {}, "sofa_1": {}, "gelu_tanh": {}}"#,
    )
    .unwrap();
    for name in ["softmax_3x7", "gelu_tanh"] {
        let name = format!("{name}.safetensors");
        fs::copy(golden().join(&name), here.join(&name)).unwrap();
    }
    fs::copy(golden().join("softmax_3x7.safetensors"), here.join("sofa_1.safetensors")).unwrap();
    // The last tensor's last element, in the highest byte.
    let mut bytes = fs::read(here.join("softmax_3x7.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(here.join("softmax_3x7.safetensors"), bytes).unwrap();
    let output = run(here, &["check", "--golden", "."]);
    assert!(error_of(&output).contains("3 of 4 cases failed"));
    let said = text(&output.stdout);
    let expected = [
        ("gelu_tanh ", "ok"),
        ("sofa_1 ", "no known kind"),
        ("softmax_3x7 ", "FAILED"),
        ("softmax_other ", "there is no such file"),
        ("1 passed, 3 failed", ""),
    ];
    assert_eq!(said.lines().count(), expected.len(), "{said}");
    for (line, (start, part)) in said.lines().zip(expected) {
        assert!(line.starts_with(start) && line.contains(part), "{said}");
    }
}

#[test]
fn without_an_adapter_one_line_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let command = |verb: &[&str]| {
        let mut command = wgformer();
        command.current_dir(folder.path()).args(verb).args(["--backend", "vulkan"]);
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        error_of(&command.output().unwrap())
    };
    for verb in [&["info"][..], &["train", "--task", "dates", "--model", "model"]] {
        let error = command(verb);
        assert!(error.contains("no GPU adapter found") && error.contains("install"), "{error}");
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_unknown_adapter_is_named_with_those_that_are_here() {
    let folder = tempfile::tempdir().unwrap();
    for verb in [&["info"][..], &["train", "--task", "dates", "--model", "model"], &["plan"]] {
        let arguments = [verb, &["--adapter", "no such adapter"]].concat();
        fails(folder.path(), &arguments, &["no adapter \"no such adapter\"; there are: 0: "]);
    }
    let output = wgformer().arg("info").env("WGPU_ADAPTER_NAME", "no such adapter").output().unwrap();
    assert!(error_of(&output).contains("no such adapter"));
    let output = wgformer().arg("info").env("WGPU_BACKEND", "abacus").output().unwrap();
    assert!(error_of(&output).contains("WGPU_BACKEND"));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_corpus_that_cannot_be_used_is_named_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("empty.tsv", b"");
    write("blank.tsv", b"a\t\n");
    write("latin1.tsv", b"a\tb\nc\xe9\td\n");
    write("no-tab.tsv", b"a\tb\nc d\n");
    write("two", b"a\nb\n");
    write("three", b"a\nb\nc\n");
    let before = names(folder.path());
    let cases: [(&[&str], &[&str]); 7] = [
        (&["missing.tsv"], &["missing.tsv: there is no such file"]),
        (&["empty.tsv"], &["empty.tsv: is empty"]),
        (&["blank.tsv"], &["blank.tsv: has no sentence pair"]),
        (&["latin1.tsv"], &["latin1.tsv: line 2: is not UTF-8"]),
        (&["no-tab.tsv"], &["no-tab.tsv: line 2: has no tab"]),
        (&["two", "three"], &["three: has 3 lines", "two has 2 lines"]),
        (&["."], &["it is a folder"]),
    ];
    for (files, parts) in cases {
        fails(folder.path(), &[&["train", "--train"], files, &["--model", "model"]].concat(), parts);
        assert_eq!(names(folder.path()), before);
    }
}

#[test]
fn settings_that_are_impossible_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.toml"), "[model]\nheads = 2\nhaeds = 3\n").unwrap();
    fs::write(folder.path().join("d.toml"), "[training]\nsteps = 'many'\n").unwrap();
    let before = names(folder.path());
    let cases: [(&[&str], &[&str]); 10] = [
        (&["--heads", "5", "--width", "64"], &["heads", "5 heads do not divide the width 64"]),
        (&["--width", "0"], &["width"]),
        (&["--dropout", "1"], &["dropout", "1"]),
        (&["--learning-rate=-1"], &["learning_rate", "-1"]),
        (&["--learning-rate", "nan"], &["learning_rate", "NaN"]),
        (&["--batch-size", "0"], &["batch size", "0"]),
        (&["--target-vocabulary", "2"], &["vocabulary size", "2"]),
        (&["--config", "c.toml"], &["c.toml: line 3", "haeds"]),
        (&["--config", "d.toml"], &["d.toml: line 2"]),
        (&["--config", "missing.toml"], &["missing.toml"]),
    ];
    for (options, parts) in cases {
        fails(folder.path(), &[&["train", "--task", "dates", "--model", "model"], options].concat(), parts);
        assert_eq!(names(folder.path()), before);
    }
    fails(folder.path(), &["train", "--model", "model"], &["nothing to train on", "--train", "--task"]);
}

#[test]
fn a_model_folder_that_cannot_be_used_is_named_with_the_file() {
    let here = Path::new(".");
    let translate = |folder: &Path, parts: &[&str]| {
        fails(here, &["translate", "--model", folder.to_str().unwrap(), "3.3.1999"], parts);
    };
    translate(Path::new("no/such/folder"), &["no/such/folder: there is no such model folder"]);
    type Change = fn(&Path);
    let cases: [(Change, &[&str]); 9] = [
        (|f| fs::remove_file(f.join("config.toml")).unwrap(), &["config.toml: there is no such file"]),
        (|f| fs::remove_file(f.join("target.vocab")).unwrap(), &["target.vocab: there is no such file"]),
        (
            |f| fs::remove_file(f.join("model.safetensors")).unwrap(),
            &["model.safetensors: there is no such file"],
        ),
        (
            |f| {
                let bytes = fs::read(f.join("model.safetensors")).unwrap();
                fs::write(f.join("model.safetensors"), &bytes[..bytes.len() - 100]).unwrap();
            },
            &["model.safetensors: is truncated"],
        ),
        (|f| fs::write(f.join("model.safetensors"), "something else").unwrap(), &["is no safetensors file"]),
        (
            |f| replace(&f.join("config.toml"), "feed_forward = 32", "feed_forward = 48"),
            &["model.safetensors: the tensor", "feed_forward", "has the shape", "but should have"],
        ),
        (
            |f| replace(&f.join("config.toml"), "decoder_layers = 1", "decoder_layers = 2"),
            &["model.safetensors: the tensor", "decoder.layers.1", "is missing"],
        ),
        (
            |f| {
                let path = f.join("source.vocab");
                let text = fs::read_to_string(&path).unwrap();
                fs::write(&path, text + "new\n").unwrap();
            },
            &["source.vocab: has", "config.toml says"],
        ),
        (
            |f| replace(&f.join("config.toml"), "\"source.vocab\"", "\"../../source.vocab\""),
            &["config.toml: source_vocabulary_file"],
        ),
    ];
    for (change, parts) in cases {
        let folder = copy();
        change(folder.path());
        translate(folder.path(), parts);
    }
}

fn replace(path: &Path, old: &str, new: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(old), "{text}");
    fs::write(path, text.replace(old, new)).unwrap();
}

#[test]
fn a_tensor_above_a_limit_is_named_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let big = ["plan", "--portable", "--preset", "big", "--source-vocabulary", "100000"];
    fails(
        folder.path(),
        &big,
        &["source_embedding.weight [100000, 1024] needs 409600000 of max_storage_buffer_binding_size"],
    );
    // Training says it too, and leaves nothing.
    let words: String = (0..40_000).map(|i| format!("w{i} w{i}\ta\n")).collect();
    fs::write(folder.path().join("words.tsv"), words).unwrap();
    let sizes = ["--layers", "1", "--width", "1024", "--heads", "16", "--feed-forward", "64"];
    let train = ["train", "--train", "words.tsv", "--model", "model", "--source-vocabulary", "50000"];
    let output = run(folder.path(), &[&train[..], &sizes].concat());
    if output.status.success() {
        println!("skipped: this device takes a tensor of 160 MiB");
        return;
    }
    let error = error_of(&output);
    assert!(error.contains("source_embedding") && error.contains("but this device allows"), "{error}");
    assert_eq!(names(folder.path()), ["words.tsv"]);
}

#[test]
fn a_full_disk_leaves_no_half_written_file() {
    let full = fs::File::options().write(true).open("/dev/full");
    if let Ok(full) = full {
        let output = wgformer().args(["plan", "--portable"]).stdout(full).output().unwrap();
        assert!(error_of(&output).contains("cannot write to standard output"));
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=64k", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(folder.path()).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: only root can mount a small file system to fill it");
        return;
    }
    let output = train(folder.path(), &[]);
    let left = names(folder.path());
    let unmounted = Command::new("umount").arg(folder.path()).status().unwrap();
    assert!(unmounted.success());
    let error = error_of(&output);
    assert!(error.contains("model: cannot be written to") && error.contains("No space left"), "{error}");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_model_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.toml"), "mine").unwrap();
    let error = error_of(&train(folder.path(), &[]));
    assert!(error.contains("model: holds a model already (config.toml)"), "{error}");
    assert_eq!(fs::read_to_string(model.join("config.toml")).unwrap(), "mine");
    succeeds(train(folder.path(), &["--overwrite"]));
    assert!(fs::read_to_string(model.join("config.toml")).unwrap().contains("[model]"));
}

#[test]
fn plans_are_printed_with_a_summary() {
    let here = Path::new(".");
    let said = text(&succeeds(run(here, &["plan", "--portable", "--preset", "tiny"])).stdout);
    assert!(
        said.contains("a step of training") && said.contains("dispatches") && said.contains("FLOP"),
        "{said}"
    );
    let model = trained().to_str().unwrap();
    let arguments =
        ["plan", "--model", model, "--inference", "--rows", "2", "--source", "16", "--target", "16"];
    let said = text(&succeeds(run(here, &arguments)).stdout);
    assert!(said.contains("encoding") && said.contains("a step of decoding"), "{said}");
    fails(here, &["plan", "--model", model, "--source", "1000"], &["source"]);
}
