//! The verbs of `wgformer bench` as a person meets them, on the adapter that tests run on, and the file that they share.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wgformer::bench::{
    Adapter, Ceilings, Clock, Environment, KernelUse, Pass, Results, Row, SCHEMA, Sampled, Status, Verified,
};

/// Ten rounds of a time, with half a percent of noise.
fn sampled(ns: f64) -> Sampled {
    let rounds: Vec<Vec<f64>> =
        (0..10).map(|i| (0..3).map(|j| ns * (1.0 + 0.001 * f64::from((i + 2 * j) % 6))).collect()).collect();
    let control = vec![1.0; rounds.len()];
    Sampled { compile_ns: 1e6, ..Sampled::new(Clock::Host, rounds, control, 1.0).unwrap() }
}

fn row(adapter: usize, name: &str, length: u64, pass: Pass, ns: f64) -> Row {
    let family = name.split('/').next().unwrap();
    Row {
        adapter,
        family: family.into(),
        name: name.into(),
        shape: [("D".to_string(), 64), ("S".to_string(), length)].into(),
        dtype: "f32".into(),
        pass,
        status: Status::Ok,
        reason: None,
        kernels: vec![KernelUse {
            name: format!("{name}_kernel"),
            dispatches: 2,
            wgsl: "0123456789abcdef".into(),
            constants: Default::default(),
        }],
        verified: Some(Verified { elements: 64, of: 128, worst: 0.25 }),
        flops: 1_000_000 * length,
        bytes: 100_000 * length,
        tokens: None,
        time: Some(sampled(ns)),
    }
}

/// Results of one adapter, whose times are multiplied by `factor`.
fn results(adapter: &str, factor: f64) -> Results {
    let mut rows = vec![row(0, "matmul/nn", 64, Pass::Forward, 1e6 * factor)];
    for length in [128, 256, 512] {
        rows.push(row(0, "attention/causal", length, Pass::Forward, 1e4 * length as f64 * factor));
        rows.push(row(0, "attention/causal", length, Pass::Backward, 3e4 * length as f64 * factor));
    }
    Results {
        schema: SCHEMA.into(),
        environment: Environment {
            started: "2026-01-31T12:00:00Z".into(),
            version: "0.1.0".into(),
            commit: Some("abc".into()),
            system: "linux x86_64".into(),
            threads: 2,
            arguments: vec![],
            seed: 1,
        },
        adapters: vec![Adapter {
            name: adapter.into(),
            class: "cpu".into(),
            backend: "vulkan".into(),
            driver: "driver".into(),
            driver_version: "1.0".into(),
            subgroup_sizes: [4, 8],
            features: vec!["subgroups".into()],
            limits: Default::default(),
            ceilings: Ceilings { copy_gb_s: 20.0, fma_gflop_s: 200.0 },
            control_ns: 1.0,
        }],
        rows,
    }
}

fn without_time(results: &mut Results, row: usize, status: Status, reason: &str) {
    let row = &mut results.rows[row];
    (row.status, row.time, row.reason) = (status, None, Some(reason.into()));
}

/// A folder with result files.
fn folder(files: &[(&str, &Results)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, results) in files {
        fs::write(folder.path().join(name), serde_json::to_vec(results).unwrap()).unwrap();
    }
    folder
}

fn bench(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("wgformer"));
    command.current_dir(folder).arg("bench").args(arguments).output().unwrap()
}

/// What a run that succeeds writes to standard output.
#[track_caller]
fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = bench(folder, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What a run that fails as every one should writes to standard output; its one line of error has `parts`.
#[track_caller]
fn fails(folder: &Path, arguments: &[&str], parts: &[&str]) -> String {
    let output = bench(folder, arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    // A run that takes long says how far it is.
    let lines: Vec<&str> = error.lines().filter(|line| !line.starts_with("benchmark ")).collect();
    assert_eq!((output.status.code(), lines.len()), (Some(1), 1), "{error}");
    let error = lines[0];
    assert!(error.starts_with("error: ") && !error.contains("internal error"), "{error}");
    for part in parts {
        assert!(error.contains(part), "{error}, expected {part}");
    }
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_has_examples() {
    for verb in ["compare", "report"] {
        let help = said(Path::new("."), &[verb, "--help"]);
        assert!(help.contains("Examples:") && help.contains(&format!("wgformer bench {verb}")), "{help}");
    }
}

#[test]
fn compare_says_what_became_slower() {
    let (a, mut b) = (results("one", 1.0), results("one", 1.0));
    b.rows[0].time = Some(sampled(1.15e6));
    b.environment.commit = Some("def".into());
    b.adapters[0].driver_version = "1.1".into();
    b.rows.push(row(0, "matmul/nt", 64, Pass::Forward, 1e6));
    let folder = folder(&[("a.json", &a), ("b.json", &b)]);
    let folder = folder.path();

    let table = said(folder, &["compare", "a.json", "b.json"]);
    for part in [
        "- commit: abc in A, def in B\n",
        "- driver of one: driver 1.0 in A, driver 1.1 in B\n",
        "- only in B: one, matmul/nt D 64 S 64 f32 forward\n",
        "7 rows: 1 SLOWER, 6 SAME; geometric mean of B/A 1.020\n",
    ] {
        assert!(table.contains(part), "{table}, expected {part}");
    }
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{table}");
    assert!(
        lines[2].starts_with("| matmul/nn D 64 S 64 f32 forward ") && lines[2].contains("| 1.150 | SLOWER ")
    );

    let same = fails(
        folder,
        &["compare", "a.json", "b.json", "--fail-on", "slower"],
        &["a.json and b.json: 1 row SLOWER"],
    );
    assert_eq!(same, table);
    said(folder, &["compare", "b.json", "a.json", "--fail-on", "slower"]);

    let json: serde_json::Value =
        serde_json::from_str(&said(folder, &["compare", "a.json", "b.json", "-o", "json"])).unwrap();
    assert_eq!(json["rows"][0]["verdict"], "SLOWER");
    assert_eq!(json["counts"]["SAME"], 6);
    assert_eq!(json["only_b"][0]["row"], "matmul/nt D 64 S 64 f32 forward");
}

#[test]
fn compare_across_adapters_says_so() {
    let folder = folder(&[("a.json", &results("one", 1.0)), ("b.json", &results("two", 0.5))]);
    let table = said(folder.path(), &["compare", "a.json", "b.json"]);
    assert!(table.contains("Across adapters") && table.contains("7 FASTER"), "{table}");
}

#[test]
fn compare_fails_on_wrong_rows_and_other_works() {
    let (a, mut wrong, mut other) = (results("one", 1.0), results("one", 1.0), results("one", 1.0));
    without_time(&mut wrong, 0, Status::Wrong, "\u{1b}[2Jy[3] is 4\nexpected 5");
    without_time(&mut wrong, 1, Status::Skipped, "too large");
    other.rows[2].flops += 1;
    let folder = folder(&[("a.json", &a), ("wrong.json", &wrong), ("other.json", &other)]);
    let table =
        fails(folder.path(), &["compare", "a.json", "wrong.json"], &["a.json and wrong.json: 1 row WRONG"]);
    assert!(table.contains("y[3] is 4\u{fffd}expected 5") && !table.contains('\u{1b}'), "{table}");
    assert!(table.contains("1 WRONG, 1 SKIPPED") && table.contains("too large"), "{table}");
    fails(folder.path(), &["compare", "a.json", "other.json"], &["not the same work", "attention/causal"]);
}

#[test]
fn a_report_is_one_file_that_loads_nothing() {
    let (mut a, b) = (results("<one & only>", 1.0), results("two", 0.5));
    without_time(&mut a, 0, Status::Wrong, "<script>alert(\"x\")</script>");
    without_time(&mut a, 1, Status::Skipped, "</table><img src=x onerror='alert(1)'>");
    let folder = folder(&[("a.json", &a), ("b.json", &b)]);
    assert_eq!(said(folder.path(), &["report", "a.json", "b.json", "--html", "out.html"]), "");
    let html = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    for part in [
        "<h1>wgformer benchmark</h1>",
        "&lt;one &amp; only&gt;",
        "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;",
        "1 row wrong",
        "1 row skipped",
        "aria-label=\"Roofline of two\"",
        "copy 20.0 GB/s",
        "multiply-add 200 GFLOP/s",
        "attention/causal D 64 S 512 f32 backward\n",
        "<h3>two against &lt;one &amp; only&gt;</h3>",
        "2.00 \u{d7}",
        "<td class=\"num\">501 [500, ",
        "prefers-color-scheme: dark",
    ] {
        assert!(html.contains(part), "expected {part}");
    }
    for part in ["<script", "<img", "<link", "http:", "https:", "url(", "@import", "NaN", "inf\""] {
        assert!(!html.contains(part), "found {part}");
    }
    assert_eq!(html.matches("<polyline").count(), 2 * 2);
    // A row of each file in the table.
    assert_eq!(html.matches("_kernel \u{d7}2</td>").count(), 14);
}

#[test]
fn a_report_of_the_oddest_numbers_is_finite() {
    let mut a = results("one", 1.0);
    for (row, [flops, bytes]) in a.rows.iter_mut().zip([[u64::MAX, 1], [1, u64::MAX], [0, 0], [0, 1], [1, 0]])
    {
        (row.flops, row.bytes) = (flops, bytes);
        row.time = Some(sampled(1e-300));
    }
    a.rows[5].time = Some(sampled(1e300));
    a.adapters[0].ceilings = Ceilings { copy_gb_s: -1.0, fma_gflop_s: 1e308 };
    a.rows[6].shape.insert("S".into(), u64::MAX);
    let folder = folder(&[("a.json", &a)]);
    said(folder.path(), &["report", "a.json", "--html", "out.html"]);
    let html = fs::read_to_string(folder.path().join("out.html")).unwrap();
    assert!(!html.contains("NaN") && !html.contains("\"inf") && html.len() < 200_000, "{}", html.len());
}

#[test]
fn bad_files_are_named() {
    let good = results("one", 1.0);
    let folder = folder(&[
        ("good.json", &good),
        ("none.json", &Results { rows: vec![], ..good.clone() }),
        ("schema.json", &Results { schema: "wgformer-bench-9".into(), ..good.clone() }),
    ]);
    let folder = folder.path();
    let whole = fs::read(folder.join("good.json")).unwrap();
    fs::write(folder.join("short.json"), &whole[..whole.len() / 2]).unwrap();
    fs::write(folder.join("text.json"), "name,time\n").unwrap();
    for (file, problem) in [
        ("missing.json", "there is no such file"),
        ("none.json", "no row"),
        ("schema.json", "wgformer-bench-9"),
        ("short.json", "is cut short"),
        ("text.json", "is no result of"),
    ] {
        fails(folder, &["report", file, "--html", "out.html"], &[file, problem]);
        fails(folder, &["compare", "good.json", file], &[problem]);
        assert!(!folder.join("out.html").exists());
    }
    fails(folder, &["report", "good.json", "--html", "no/out.html"], &["no/out.html", "there is no folder"]);
}

// ---- The file ----

#[test]
fn the_file_keeps_its_schema() {
    let mut all = results("one", 1.0);
    all.rows.truncate(3);
    all.rows[0].tokens = Some(64);
    all.rows[0].kernels[0].constants.insert("WIDTH".into(), "4".into());
    all.adapters[0].limits.insert("max_buffer_size".into(), 1 << 30);
    without_time(&mut all, 1, Status::Wrong, "y[3] is 4, expected 5");
    without_time(&mut all, 2, Status::Skipped, "too large");
    all.rows[2].verified = None;
    // A change here that is not a field more is another schema: see benches/README.md.
    insta::assert_json_snapshot!(all);
}

/// The types of a value and all in it.
fn types(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Null => Null,
        Bool(_) => "bool".into(),
        Number(n) => if n.is_f64() { "float" } else { "integer" }.into(),
        String(_) => "string".into(),
        Array(all) => {
            let mut all: Vec<_> = all.into_iter().map(types).collect();
            all.dedup();
            all.into()
        }
        Object(all) => all.into_iter().map(|(name, value)| (name, types(value))).collect(),
    }
}

/// Sizes at which a row takes no time, and few samples of it.
const SMALL: &[&str] =
    &["matmul/", "K 64 M 64 N 64", "--square", "64", "--quick", "--repeats", "3", "--warmup", "0"];

#[test]
fn run_writes_what_the_schema_promises() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = said(folder, &[&["run", "-o", "json", "--file", "same.json"], SMALL].concat());
    assert_eq!(fs::read_to_string(folder.join("same.json")).unwrap(), text.trim_end());
    let mut all = Results::read(&folder.join("same.json")).unwrap();
    let names: Vec<&str> = all.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["ceiling/copy", "ceiling/fma", "matmul/nn", "matmul/nt", "matmul/tn"]);
    for row in &all.rows {
        let verified = row.verified.unwrap();
        assert_eq!((row.status, row.reason.as_deref()), (Status::Ok, None), "{}", row.key());
        assert!(verified.elements > 0 && verified.elements <= verified.of && verified.worst <= 1.0);
        assert!(row.flops > 0 && row.bytes > 0 && !row.kernels.is_empty());
        let time = row.time.as_ref().unwrap();
        assert!(time.rounds.len() >= 3 && time.min_ns <= time.median_ns && time.repetitions > 0);
    }
    assert_eq!((all.rows[2].flops, all.rows[2].bytes), (2 * 64 * 64 * 64, 3 * 4 * 64 * 64));
    let adapter = &all.adapters[0];
    assert!(adapter.ceilings.copy_gb_s > 0.0 && adapter.ceilings.fma_gflop_s > 0.0);
    assert!(adapter.limits["max_storage_buffers_per_shader_stage"] >= 8);

    // Names that differ from adapter to adapter, and what some have and others not.
    all.environment.commit = Some(String::new());
    all.adapters[0].limits = [("a limit".to_string(), 1)].into();
    all.adapters[0].features = vec![String::new()];
    all.rows.retain(|row| row.name == "matmul/nn");
    for kernel in all.rows.iter_mut().flat_map(|row| &mut row.kernels) {
        kernel.constants = [("A_CONSTANT".to_string(), String::new())].into();
    }
    insta::assert_json_snapshot!(types(serde_json::to_value(&all).unwrap()));
}

#[test]
fn a_wrong_kernel_has_no_speed() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["run", "softmax", "--rows", "8", "--width", "64", "--quick", "--repeats", "3"];
    let arguments =
        [&arguments[..], &["--warmup", "0", "--wrong", "softmax", "--file", "wrong.json"]].concat();
    let table = fails(folder.path(), &arguments, &["2 rows are wrong", "softmax C 64 rows 8 f32 forward"]);
    assert!(table.contains("2 verified and timed, 2 wrong, 0 skipped"), "{table}");
    for row in Results::read(&folder.path().join("wrong.json")).unwrap().rows {
        let wrong = row.family == "softmax";
        assert_eq!(row.status == Status::Wrong, wrong, "{}", row.key());
        assert_eq!((row.time.is_none(), row.reason.is_some()), (wrong, wrong), "{}", row.key());
    }
}

#[test]
fn what_has_no_kernels_is_skipped_in_every_format() {
    let written = |format: &str| {
        let arguments = [&["run", "--dtype", "f16", "-o", format], SMALL].concat();
        fails(Path::new("."), &arguments, &["nothing could run", "matmul/nn", "16-bit floats"])
    };
    let json: Results = serde_json::from_str(&written("json")).unwrap();
    assert_eq!(json.rows.len(), 5);
    for row in &json.rows {
        assert_eq!((row.dtype.as_str(), row.status), ("f16", Status::Skipped));
        assert!(row.reason.as_ref().is_some_and(|reason| reason.contains("16-bit floats")));
    }

    let lines = written("jsonl");
    let lines: Vec<&str> = lines.lines().collect();
    let head: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
    assert_eq!(head["schema"], SCHEMA);
    assert_eq!(head["adapters"], serde_json::to_value(&json.adapters).unwrap());
    let rows: Vec<Row> = lines[1..].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows, json.rows);

    let csv = written("csv");
    assert_eq!(csv.lines().count(), 6, "{csv}");
    assert!(csv.starts_with("adapter,") && csv.contains(",matmul,matmul/nn,K 64 M 64 N 64,f16,"), "{csv}");
    // A comma in a name is within quotes.
    let fields = |line: &str| line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>();
    assert!(csv.lines().all(|line| fields(line) == fields(csv.lines().next().unwrap())), "{csv}");

    let table = written("md");
    assert!(table.contains("0 verified and timed, 0 wrong, 5 skipped"), "{table}");
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 + 5, "{table}");
    assert!(lines[2..].iter().all(|line| line.contains("| skipped: ")), "{table}");
}

#[test]
fn list_shows_what_run_would_time() {
    let list = said(Path::new("."), &["list", "attention/causal", "forward", "--seq", "16,32"]);
    let rows = list.lines().filter(|line| line.contains("attention/causal") && line.contains("forward"));
    assert!(rows.clone().any(|line| line.contains(" S 16")) && rows.clone().any(|l| l.contains(" S 32")));
    // Beside the ceilings, of which all others are shares.
    assert_eq!(list.lines().count(), 2 + 2 + rows.count(), "{list}");
}

#[test]
fn bad_requests_are_named() {
    for (arguments, parts) in [
        (&["run", "atention"][..], &["no row contains \"atention\"", "attention,", "bench list"][..]),
        (&["list", "matmul/nx"], &["no row contains", "matmul/nn"]),
        (&["run", "matmul", "softmax"], &["no row contains all of"]),
        (&["run", "--checked"], &["--checked"]),
    ] {
        fails(Path::new("."), arguments, parts);
    }
    for (arguments, part) in [
        (["run", "--square", "8-64"], "needs a step"),
        (["run", "--seq", "0"], "no size from 1"),
        (["list", "--batch", "64-8*2"], "never gets from 64 to 8"),
        (["run", "--dtype", "f64"], "f64"),
        (["run", "--preset", "huge"], "huge"),
    ] {
        let output = bench(Path::new("."), &arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{error}");
    }
}

#[test]
fn what_no_device_holds_is_refused_at_once() {
    let begin = Instant::now();
    let tokens = ["run", "attention", "--batch", "1000000", "--seq", "1000000"];
    fails(Path::new("."), &tokens, &["batch x seq", "1000000000000 tokens"]);
    let sizes = ["--batch", "1024", "--seq", "262144", "--preset", "tiny"];
    let table = fails(
        Path::new("."),
        &[&["run", "S 262144", "--repeats", "3", "--warmup", "0"][..], &sizes].concat(),
        &["nothing could run", "attention/none B 1024 D 64 H 8 S 262144 f32 forward", "needs"],
    );
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("S 262144")).collect();
    assert!(rows.iter().all(|row| row.contains("| skipped: ") && row.contains("needs")), "{table}");
    for name in ["attention/causal", "attention/padding", "model/tiny", "decode/tiny"] {
        assert!(rows.iter().any(|row| row.contains(name)), "{table}");
    }
    // The ceilings, on two busy cores; the numbers alone would take weeks.
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}
