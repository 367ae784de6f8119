//! What the program keeps between its runs: compiled pipelines, and measurements of variants.

use super::*;

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
    let mut command = wgformer();
    let arguments = ["tune", "--seconds", "600", "--out", "t.json", "--preset", "small"];
    command.current_dir(folder.path()).args(arguments);
    let (output, rest) = interrupted_at(&mut command, "tuning ");
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(rest.ends_with("interrupted: nothing was saved\n"), "{rest}");
    assert!(names(folder.path()).is_empty());
}
