//! Training: the same bytes from the same seed, interrupted, verified.

use super::*;

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
    let mut command = wgformer();
    command
        .current_dir(folder)
        .args(["train", "--model", "model", "--steps", steps, "--validate-every", "2"])
        .args(TINY.iter().take(TINY.len() - 2).chain(CHARACTERS))
        .args([OsStr::new("--train"), corpus().as_os_str(), OsStr::new("--valid"), corpus().as_os_str()]);
    let (output, rest) = interrupted_at(&mut command, "step ");
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
    let output = interrupted(folder.path(), "8");
    assert!(
        text(&output.stdout).contains("stopped by Ctrl-C"),
        "8 steps were too few: {}",
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
    assert_eq!(losses("model").len(), 8);
    assert_eq!(losses("model"), losses("whole"));
}
