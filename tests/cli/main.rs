//! The program as a person meets it: what it prints, what it leaves, and above all how it fails.

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
fn training_writes_a_model_that_translates() {
    let model = trained();
    let want = ["config.toml", "metrics.jsonl", "model.safetensors", "source.vocab", "target.vocab"];
    assert_eq!(names(model), want);
    let metrics = fs::read_to_string(model.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 4);
    for line in metrics.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["loss"].as_f64().unwrap().is_finite());
    }
    let output = run(model, &["translate", "--model", ".", "3.3.1999", "March 3rd, 1999"]);
    assert_eq!(text(&succeeds(output).stdout).lines().count(), 2);
    // What is asked for one by one and together is the same.
    let lines = ["3.3.1999", "", "Wednesday, March 3, 1999", "1/1/2000", "7 July 2001"];
    let together = text(&succeeds(translate_lines(model, &lines.join("\n"), &[])).stdout);
    assert_eq!(together.lines().count(), lines.len());
    for (line, together) in lines.iter().zip(together.lines()) {
        let alone = text(&succeeds(translate_lines(model, &format!("{line}\r\n"), &["--batch", "1"])).stdout);
        assert_eq!(alone, format!("{together}\n"), "{line}");
    }
}

/// Translates what is given as standard input.
#[test]
fn steps_are_verified_kernel_by_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let said = text(&succeeds(train(folder.path(), &["--verify-steps", "2"])).stderr);
    for step in ["verified step 1: ", "verified step 2: "] {
        let line = said.lines().find(|line| line.contains(step)).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(" dispatches, largest error "), "{line}");
    }
    assert!(!said.contains("verified step 3"), "{said}");
}

fn translate_lines(model: &Path, input: &str, options: &[&str]) -> Output {
    let mut child = wgformer()
        .args(["translate", "--model"])
        .arg(model)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_shipped_model_translates() {
    let output = succeeds(run(Path::new("."), &["translate", "Why do we work?"]));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    assert!(!text(&output.stdout).trim().is_empty());
}

#[test]
fn half_precision_translates_nearly_all_alike_or_names_what_is_missing() {
    let here = Path::new(".");
    let has = text(&succeeds(run(here, &["info"])).stdout).contains("16-bit floats     yes");
    let command = ["translate", "--precision", "f16"];
    if !has {
        fails(here, &[&command[..], &["Hello."]].concat(), &["the precision f16 needs", "SHADER_F16", "f32"]);
        return;
    }
    let subjects = ["I", "You", "We", "They", "Tom", "My father", "The teacher", "Nobody"];
    let rest = ["work here.", "want to go home.", "like music.", "need some water.", "can swim fast."];
    let lines: Vec<String> =
        subjects.iter().flat_map(|s| rest.iter().map(move |r| format!("{s} {r}"))).collect();
    let arguments: Vec<&str> = lines.iter().map(String::as_str).collect();
    let full = text(&succeeds(run(here, &[&["translate"][..], &arguments].concat())).stdout);
    let half = text(&succeeds(run(here, &[&command[..], &arguments].concat())).stdout);
    assert_eq!(half.lines().count(), lines.len());
    let other = full.lines().zip(half.lines()).filter(|(f, h)| f != h).count();
    assert!(other * 10 <= lines.len(), "{other} of {}:\n{full}\n{half}", lines.len());
    let other = run(here, &["translate", "--precision", "f8", "Hello."]);
    assert!(!other.status.success() && text(&other.stderr).contains("f8"), "{}", text(&other.stderr));
}

#[test]
fn a_sentence_that_is_too_long_is_reported_by_its_line() {
    let long = "1".repeat(100);
    let input = format!("3.3.1999\n{long}\n3.3.1999\n");
    let output = succeeds(translate_lines(trained(), &input, &[]));
    let said = text(&output.stderr);
    assert!(said.contains("line 2: 101 symbols, but the model takes 32: left out"), "{said}");
    let (first, rest) =
        text(&output.stdout).split_once('\n').map(|(a, b)| (a.to_string(), b.to_string())).unwrap();
    assert_eq!(rest, format!("\n{first}\n"));
    let output = succeeds(translate_lines(trained(), &input, &["--overlong", "cut"]));
    assert!(text(&output.stderr).contains("line 2: 101 symbols, but the model takes 32: cut"));
    assert_eq!(text(&output.stdout).lines().count(), 3);

    // In a corpus: ten lines at most, then their number.
    let folder = tempfile::tempdir().unwrap();
    let mut corpus = String::from("a b\tc d\n");
    for _ in 0..15 {
        corpus += "a a a a a a a a a a a a\tc\n";
    }
    fs::write(folder.path().join("c.tsv"), corpus).unwrap();
    let options = ["train", "--train", "c.tsv", "--max-source", "8", "--model", "model"];
    let said = text(&succeeds(run(folder.path(), &[&options[..], TINY].concat())).stderr);
    assert!(said.contains("training line 2: the source has 13 symbols, the most is 8: left out"), "{said}");
    assert!(!said.contains("training line 12:") && said.contains("5 pairs more are too long"), "{said}");
    let cut = [&options[..], TINY, &["--overlong", "cut", "--overwrite"]].concat();
    assert!(text(&succeeds(run(folder.path(), &cut)).stderr).contains("line 2: the source has 13 symbols"));
    fs::write(folder.path().join("c.tsv"), "a a a a a a a a a a\tc\n").unwrap();
    let overwrite = [&options[..], TINY, &["--overwrite"]].concat();
    fails(
        folder.path(),
        &overwrite,
        &["no sentence pair is short enough: the source in line 1 has 11 symbols"],
    );
}

#[test]
fn input_that_is_not_text_is_reported_by_its_line() {
    let mut child = wgformer()
        .args(["translate", "--model"])
        .arg(trained())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"3.3.1999\n\xff\xfe\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(error_of(&output).contains("line 2 of standard input is not UTF-8"));
    assert_eq!(text(&output.stdout).lines().count(), 1);
}

#[test]
fn who_stops_reading_ends_the_program_quietly() {
    let mut child = wgformer()
        .args(["plan", "--portable", "--preset", "base"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    succeeds(train(a.path(), &["--dropout", "0.3"]));
    succeeds(train(b.path(), &["--dropout", "0.3"]));
    let weights = |folder: &TempDir| fs::read(folder.path().join("model/model.safetensors")).unwrap();
    assert!(weights(&a) == weights(&b));
    assert_eq!(
        fs::read(a.path().join("model/config.toml")).unwrap(),
        fs::read(b.path().join("model/config.toml")).unwrap()
    );
    succeeds(train(b.path(), &["--dropout", "0.3", "--seed", "2", "--overwrite"]));
    assert!(weights(&a) != weights(&b));
    // The settings that were saved train the same model once more.
    let config = a.path().join("model/config.toml");
    succeeds(run(b.path(), &["train", "--config", config.to_str().unwrap(), "--model", "again"]));
    assert!(weights(&a) == fs::read(b.path().join("again/model.safetensors")).unwrap());
}

#[test]
fn half_precision_saves_half_the_bytes_and_still_translates() {
    let folder = tempfile::tempdir().unwrap();
    succeeds(train(folder.path(), &["--half"]));
    let size = |folder: &Path| fs::metadata(folder.join("model.safetensors")).unwrap().len();
    assert!(size(&folder.path().join("model")) < size(trained()) * 2 / 3);
    succeeds(run(folder.path(), &["translate", "--model", "model", "3.3.1999"]));
}

/// Starts a training that validates every other step, and interrupts it after the first validation.
#[cfg(unix)]
fn interrupted(folder: &Path, steps: &str) -> Output {
    let mut child = wgformer()
        .current_dir(folder)
        .args(["train", "--model", "model", "--steps", steps, "--validate-every", "2"])
        .args(TINY.iter().take(TINY.len() - 2).chain(CHARACTERS))
        .args([OsStr::new("--train"), corpus().as_os_str(), OsStr::new("--valid"), corpus().as_os_str()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("step ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "no validation was reported");
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        let _ = said.read_to_string(&mut rest);
        rest
    });
    let output = child.wait_with_output().unwrap();
    let rest = reader.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{rest}");
    output
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_after_the_step_and_saves() {
    let folder = tempfile::tempdir().unwrap();
    let output = interrupted(folder.path(), "10000000");
    assert!(text(&output.stdout).contains("stopped by Ctrl-C after step"), "{}", text(&output.stdout));
    succeeds(run(folder.path(), &["translate", "--model", "model", "3.3.1999"]));
}

#[cfg(unix)]
#[test]
fn an_interrupted_training_goes_on_as_if_it_had_not_been() {
    let folder = tempfile::tempdir().unwrap();
    let output = interrupted(folder.path(), "60");
    assert!(
        text(&output.stdout).contains("stopped by Ctrl-C"),
        "60 steps were too few: {}",
        text(&output.stdout)
    );
    fails(
        folder.path(),
        &["train", "--resume", "--model", "model", "--steps", "9"],
        &["leave out the others"],
    );
    let resumed = succeeds(run(folder.path(), &["train", "--resume", "--model", "model"]));
    assert!(text(&resumed.stderr).contains("resumed after step"), "{}", text(&resumed.stderr));
    fails(folder.path(), &["train", "--resume", "--model", "model"], &["holds no interrupted training"]);

    let config = folder.path().join("model/config.toml");
    succeeds(run(folder.path(), &["train", "--config", config.to_str().unwrap(), "--model", "whole"]));
    for name in ["model.safetensors", "config.toml"] {
        let read = |model: &str| fs::read(folder.path().join(model).join(name)).unwrap();
        assert!(read("model") == read("whole"), "{name}");
    }
    let names = |model: &str| names(&folder.path().join(model));
    assert_eq!(names("model"), names("whole"));
    // The numbers of each step, too, but for the speed.
    let losses = |model: &str| -> Vec<(u64, String)> {
        let text = fs::read_to_string(folder.path().join(model).join("metrics.jsonl")).unwrap();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            (line["step"].as_u64().unwrap(), format!("{} {}", line["loss"], line["validation"]))
        };
        text.lines().map(line).collect()
    };
    assert_eq!(losses("model").len(), 60);
    assert_eq!(losses("model"), losses("whole"));
}

/// What the program says on standard error, with a cache folder of its own; Mesa's stays where it is.
fn said_with_cache(cache: &Path, options: &[&str]) -> String {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home_cache = || variable("HOME").map(|home| home.join(".cache"));
    let mesa = variable("MESA_SHADER_CACHE_DIR").or(variable("XDG_CACHE_HOME")).or_else(home_cache);
    let mut command = wgformer();
    command.args(["translate", "3.3.1999", "--model"]).arg(trained()).args(options);
    command.env("XDG_CACHE_HOME", cache).env("LOCALAPPDATA", cache).env("HOME", cache);
    if let Some(mesa) = mesa {
        command.env("MESA_SHADER_CACHE_DIR", mesa);
    }
    text(&succeeds(command.output().unwrap()).stderr)
}

#[test]
fn pipelines_that_cannot_be_used_are_ignored() {
    let cache = tempfile::tempdir().unwrap();
    let base =
        if cfg!(target_os = "macos") { cache.path().join("Library/Caches") } else { cache.path().into() };
    let folder = base.join("wgformer/pipelines");
    let name = std::env::var("WGPU_ADAPTER_NAME").ok();
    let gpu = wgformer::gpu::request(&wgformer::gpu::Request { name, ..Default::default() }).unwrap();
    assert!(!said_with_cache(cache.path(), &["--no-pipeline-cache"]).contains("pipeline"));
    assert!(!folder.exists());
    assert!(!said_with_cache(cache.path(), &[]).contains("pipeline"));
    let Some(name) = gpu.pipeline_cache_name() else {
        assert!(!folder.exists());
        return;
    };
    let path = folder.join(name);
    fs::create_dir_all(&folder).unwrap();
    let large = |path: &Path| {
        fs::File::create(path).unwrap().set_len(wgformer::gpu::MAX_PIPELINE_CACHE_BYTES + 1).unwrap()
    };
    type Write<'a> = &'a dyn Fn(&Path);
    let cases: [(Write, &str); 3] = [
        (
            &|path| fs::write(path, "something else, and long enough to be one").unwrap(),
            "is no pipeline cache",
        ),
        (&|path| fs::write(path, "").unwrap(), "is truncated"),
        (&large, "is too large"),
    ];
    for (write, problem) in cases {
        write(&path);
        let said = said_with_cache(cache.path(), &[]);
        let line =
            said.lines().find(|line| line.contains("pipeline cache")).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(problem) && line.contains(path.to_str().unwrap()), "{said}");
        // What replaced it is right.
        assert!(!said_with_cache(cache.path(), &[]).contains("pipeline"));
    }
    write_and_be_quiet(&path, cache.path());
    // Two at once.
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| said_with_cache(cache.path(), &[])));
        for said in both.map(|thread| thread.join().unwrap()) {
            assert!(!said.contains("cannot"), "{said}");
        }
    });
    // A folder that cannot be made.
    fs::remove_dir_all(base.join("wgformer")).unwrap();
    fs::write(base.join("wgformer"), "").unwrap();
    let said = said_with_cache(cache.path(), &[]);
    assert!(said.contains("compiled pipelines are not kept"), "{said}");
}

/// Turned off, a file that is wrong is not even looked at.
fn write_and_be_quiet(path: &Path, cache: &Path) {
    fs::write(path, "").unwrap();
    assert!(!said_with_cache(cache, &["--no-pipeline-cache"]).contains("pipeline"));
    assert_eq!(fs::read(path).unwrap(), b"");
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

/// A model whose kernels are measured in seconds.
const MEASURED: &[&str] = &[
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--feed-forward",
    "32",
    "--source-vocabulary",
    "20",
    "--target-vocabulary",
    "20",
    "--rows",
    "2",
    "--source",
    "5",
    "--target",
    "4",
];

#[test]
fn what_was_tuned_is_used_where_it_was_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let tuned = succeeds(run(here, &[&["tune", "--seconds", "3", "--out", "t.json"], MEASURED].concat()));
    assert!(text(&tuned.stdout).contains("| shipped"), "{}", text(&tuned.stdout));
    assert!(text(&tuned.stderr).contains("measured in"), "{}", text(&tuned.stderr));
    assert_eq!(names(here), ["t.json"]);
    let path = here.join("t.json");
    let file = wgformer::tuning::TuningFile::read(&path).unwrap();
    assert!(!file.measured.is_empty());

    let plan = |tuning: &'static str| [&["plan", "--tuning", tuning], MEASURED].concat();
    let used = succeeds(run(here, &plan("t.json")));
    assert_eq!(text(&used.stderr), "tuning: t.json\n");
    let shipped = succeeds(run(here, &plan("shipped")));
    assert_eq!(text(&shipped.stderr), "");
    let said = text(&succeeds(run(here, &["info", "--tuning", "t.json"])).stdout);
    assert!(said.contains("tuning            t.json"), "{said}");

    fails(here, &plan("missing.json"), &["missing.json: there is no such file"]);
    replace(&path, &format!("\"name\": {:?}", file.adapter.name), "\"name\": \"another card\"");
    fails(here, &plan("t.json"), &["t.json: measured on another card", &file.adapter.name, "wgformer tune"]);
    let said = text(&succeeds(run(here, &["info", "--tuning", "t.json"])).stdout);
    assert!(said.contains("shipped, since t.json: measured on another card"), "{said}");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    for verb in ["plan", "check", "translate", "train"] {
        let model: &[&str] = if verb == "train" { &["--task", "dates", "--model", "m"] } else { &[] };
        let arguments = [&[verb, "--tuning", "t.json"], model].concat();
        fails(here, &arguments, &["t.json: no tuning of wgformer: "]);
    }
    fails(
        here,
        &["bench", "run", "--quick", "copy", "--tuning", "t.json"],
        &["t.json: no tuning of wgformer: "],
    );
}

#[test]
fn what_was_tuned_without_a_file_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let at_home = |arguments: &[&str]| {
        let mut command = wgformer();
        for name in ["XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"] {
            command.env(name, folder.path());
        }
        succeeds(command.current_dir(folder.path()).args(arguments).output().unwrap())
    };
    let none: serde_json::Value = serde_json::from_slice(&at_home(&["info", "--json"]).stdout).unwrap();
    assert!(none[0]["tuning"].is_null() && none[0]["tuning_problem"].is_null(), "{none}");
    let tuned = at_home(&[&["tune", "--seconds", "1"], MEASURED].concat());
    let said = text(&tuned.stderr);
    let path = said.lines().last().and_then(|line| line.split_once(" shipped: ")).unwrap().1;
    assert!(Path::new(path).starts_with(folder.path()), "{said}");
    let plan = [&["plan"], MEASURED].concat();
    assert_eq!(text(&at_home(&plan).stderr), format!("tuning: {path}\n"));
    let shipped = [&plan[..], &["--tuning", "shipped"]].concat();
    assert_eq!(text(&at_home(&shipped).stderr), "");
    // Nobody asked for this one: it is said, and the shipped variants are used.
    fs::write(path, "{").unwrap();
    let broken = at_home(&plan);
    assert!(text(&broken.stderr).contains("not used; run `wgformer tune` again"), "{}", text(&broken.stderr));
    assert_eq!(broken.stdout, at_home(&shipped).stdout);
}

#[test]
fn a_tuning_that_cannot_be_written_is_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let tune = |more: &'static [&'static str]| [&["tune"], MEASURED, more].concat();
    fails(folder.path(), &tune(&["--out", "nowhere/t.json"]), &["there is no folder nowhere"]);
    fails(folder.path(), &tune(&["--out", "."]), &["is a folder"]);
    fails(folder.path(), &tune(&["--checked"]), &["--checked slows kernels down"]);
    fails(folder.path(), &tune(&["--tuning", "t.json"]), &["--tuning has no use here"]);
    fails(folder.path(), &tune(&["--out", "t.json", "--model", "m"]), &["m"]);
    assert!(names(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_tuning_without_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = wgformer()
        .current_dir(folder.path())
        .args(["tune", "--seconds", "600", "--out", "t.json", "--preset", "small"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("tuning ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "no progress was reported");
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.ends_with("interrupted: nothing was saved\n"), "{rest}");
    assert!(names(folder.path()).is_empty());
}
