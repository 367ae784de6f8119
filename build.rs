//! Tells the program which commit it is built from, for the results of its benchmark. Outside of this repository, and
//! where there is no git, it is not told.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_string())
}

fn commit() -> Option<String> {
    // In a crate that is a part of somebody's repository, git would tell of that.
    if !git(&["rev-parse", "--show-prefix"])?.is_empty() || git(&["ls-files", "build.rs"])?.is_empty() {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}

fn main() {
    for path in ["src", "shaders", "Cargo.toml", "build.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rustc-env=WGFORMER_COMMIT={}", commit().unwrap_or_default());
}
