//! The verbs of `wgformer bench` that read result files, as a person meets them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;
use wgformer::bench::stats::{estimate, mad, median};
use wgformer::bench::{
    Adapter, Ceilings, Clock, Environment, KernelUse, Pass, Results, Row, SCHEMA, Sampled, Status, Verified,
};

/// Ten rounds of a time, with half a percent of noise.
fn sampled(ns: f64) -> Sampled {
    let rounds: Vec<Vec<f64>> =
        (0..10).map(|i| (0..3).map(|j| ns * (1.0 + 0.001 * f64::from((i + 2 * j) % 6))).collect()).collect();
    let all = rounds.concat();
    Sampled {
        clock: Clock::Host,
        median_ns: median(&all).unwrap(),
        min_ns: ns,
        mad_ns: mad(&all).unwrap(),
        interval_ns: estimate(&rounds, &[], 1.0).unwrap().interval,
        compile_ns: 1e6,
        control_ns: vec![1.0; rounds.len()],
        rounds,
        repetitions: 1,
        inputs_in_turn: 1,
    }
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
    assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
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
