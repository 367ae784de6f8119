//! Translating: sentences as arguments, lines, files; what is no sentence.

use super::*;

/// Translates what is given as standard input.
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
