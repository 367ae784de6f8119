//! What the program keeps between its runs, in the user's folder for that: here, pipelines that a driver has compiled.

use super::progress::note;
use anyhow::{Context, Result};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use wgformer::gpu::{Gpu, MAX_PIPELINE_CACHE_BYTES};
use wgformer::rng::fnv1a;

/// The most files of pipelines, and their bytes together: the oldest go.
const MOST: (usize, u64) = (16, 256 << 20);

/// A temporary file of this age was left by a program that was ended.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// The folder for what the program keeps and can do without; it may not exist yet. `None` where the system tells of none.
pub fn folder() -> Option<PathBuf> {
    folder_by(|name| std::env::var_os(name))
}

/// [`folder`] of an environment. What is no absolute path is as if it were not set, as the XDG specification has it.
fn folder_by(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = if cfg!(windows) {
        path("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        path("HOME").map(|home| home.join("Library/Caches"))
    } else {
        path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    base.map(|base| base.join("wgformer"))
}

/// The file of a device's pipelines.
#[derive(Clone, Debug)]
pub struct Pipelines {
    gpu: Gpu,
    path: PathBuf,
    /// The hash of what is in the file, or of an empty cache; `None` where what is there is to be replaced.
    kept: Cell<Option<u64>>,
}

impl Pipelines {
    /// Gives the device what is in the file. `None` where its pipelines cannot be kept.
    pub fn open(gpu: &Gpu) -> Option<Pipelines> {
        let path = folder()?.join("pipelines").join(gpu.pipeline_cache_name()?);
        // SAFETY: the file lies in the user's own folder, where this program alone writes such names; one that is damaged is
        // refused.
        let set = |bytes: Option<&[u8]>| unsafe { gpu.set_pipeline_cache(bytes) };
        let given = read(&path).and_then(|bytes| Ok(set(bytes.as_deref())?));
        if let Err(error) = &given {
            note(&format!("{}: {error:#}: ignored", path.display()));
            set(None).ok()?;
        }
        let kept = gpu.pipeline_cache().filter(|_| given.is_ok()).map(|bytes| fnv1a(&bytes));
        Some(Pipelines { gpu: gpu.clone(), path, kept: Cell::new(kept) })
    }

    /// Writes the file where pipelines were added. Where that cannot be done, a line says so: the work itself was done.
    pub fn keep(&self) {
        let Some(bytes) = self.gpu.pipeline_cache() else { return };
        let hash = Some(fnv1a(&bytes));
        if self.kept.replace(hash) == hash {
            return;
        }
        if let Err(error) = write(&self.path, &bytes, MOST) {
            note(&format!("compiled pipelines are not kept: {error:#} (--no-pipeline-cache turns this off)"));
        }
    }
}

/// The file, where there is one.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.context("cannot be read")?,
    };
    let mut bytes = Vec::new();
    // One byte more than may be there: so what is too large is noticed.
    file.take(MAX_PIPELINE_CACHE_BYTES + 1).read_to_end(&mut bytes).context("cannot be read")?;
    Ok(Some(bytes))
}

/// Writes the file, and removes the oldest ones in its folder.
fn write(path: &Path, bytes: &[u8], most: (usize, u64)) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    }
    wgformer::bench::write_file(path, bytes)?;
    if let Some(folder) = path.parent() {
        bound(folder, path, most);
    }
    Ok(())
}

/// Removes the oldest files of a folder until there are no more than so many, of so many bytes together. `new` stays, what
/// is no file, and what others may be writing. They may do the same meanwhile: a file that is gone already is no mistake.
fn bound(folder: &Path, new: &Path, (most, most_bytes): (usize, u64)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let found = entry.metadata().ok().filter(|found| found.is_file())?;
            let time = found.modified().ok()?;
            let temporary = entry.file_name().as_encoded_bytes().starts_with(b".");
            let recent = time.elapsed().is_ok_and(|age| age < ABANDONED);
            (!temporary || !recent).then(|| (time, found.len(), entry.path()))
        })
        .collect();
    files.sort_by_key(|(time, _, path)| (path == new, *time));
    let (mut count, mut bytes) = (files.len(), files.iter().map(|(_, n, _)| n).sum::<u64>());
    for (_, n, path) in files.iter().filter(|(_, _, path)| path != new) {
        if count <= most && bytes <= most_bytes {
            break;
        }
        let _ = fs::remove_file(path);
        (count, bytes) = (count - 1, bytes - n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_folder_follows_the_environment() {
        let of = |set: &[(&str, &str)]| {
            folder_by(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")]), Some("/x/wgformer".into()));
        assert_eq!(of(&[("HOME", "/h")]), Some("/h/.cache/wgformer".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]), Some("/h/.cache/wgformer".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", ""), ("HOME", "")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn files_are_written_read_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        let path = |i: u64| folder.join(format!("p{i}"));
        assert_eq!(read(&path(0)).unwrap(), None);
        let there = || (0..9).filter(|&i| path(i).exists()).collect::<Vec<_>>();
        for i in 0..5 {
            write(&path(i), &[i as u8; 10], (3, 1000)).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + i);
            fs::File::options().write(true).open(path(i)).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(there(), [2, 3, 4]);
        assert_eq!(read(&path(3)).unwrap(), Some(vec![3; 10]));
        // By bytes; what was written last stays, even alone above the bound.
        write(&path(2), &[2; 20], (3, 30)).unwrap();
        assert_eq!(there(), [2, 4]);
        write(&path(5), &[5; 50], (3, 30)).unwrap();
        assert_eq!(there(), [5]);
        fs::create_dir(path(6)).unwrap();
        assert!(read(&path(6)).is_err());
        assert!(write(&path(6), &[1], (3, 30)).is_err());
        assert!(write(&path(5).join("c"), &[1], (3, 30)).is_err());
    }

    /// Two processes that begin and end together: whole files, and no errors.
    #[test]
    fn two_may_write_and_bound_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
        std::thread::scope(|scope| {
            for who in 0..2u8 {
                let (shared, own) = (&shared, folder.path().join(format!("own{who}")));
                scope.spawn(move || {
                    for i in 0..100usize {
                        write(shared, &vec![who; 1000 + i], (2, 10_000)).unwrap();
                        write(&own, &[who], (2, 10_000)).unwrap();
                        let found = read(shared).unwrap().unwrap_or_default();
                        assert!(found.iter().all(|&b| b == found[0]), "torn");
                    }
                });
            }
        });
    }
}
