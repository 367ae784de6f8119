//! Reading and writing whole files: reads have a bound, writes leave the old file or the new one, never half.

#![cfg_attr(not(feature = "import"), allow(dead_code))]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Numbers the temporary files of this process.
static TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Writes `bytes` as the file `path`: beside it first, then renamed over it, so that a reader or a crash finds
/// the whole old file or the whole new one. A symbolic link at `path` is replaced, not followed.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    if path.file_name().is_none() {
        return Err(Error::file(path, "is not the name of a file"));
    }
    if path.is_dir() {
        return Err(Error::file(path, "cannot be written: it is a folder"));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let cannot = |error: io::Error| Error::file(path, format!("cannot be written: {error}"));
    let (mut file, temporary) = create_in(folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Error::file(path, format!("cannot be written: there is no folder {}", folder.display()))
        }
        _ => cannot(error),
    })?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, path)) {
        // The first error is the one to report; a file that cannot be removed either adds nothing to it.
        let _ = fs::remove_file(&temporary);
        return Err(cannot(error));
    }
    // So that the new name survives a crash of the machine. Not every system can do this, and the file is whole
    // in any case.
    #[cfg(unix)]
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Checks that a file of `bytes` can be written to `folder`, by writing one and removing it.
#[cfg(feature = "import")]
pub(crate) fn probe(folder: &Path, bytes: u64) -> Result<()> {
    let cannot = |error: io::Error| {
        Error::file(folder, format!("cannot be written to (a file of {bytes} bytes was tried): {error}"))
    };
    let (mut file, temporary) = create_in(folder).map_err(cannot)?;
    let written = io::copy(&mut io::repeat(0).take(bytes), &mut file);
    drop(file);
    let removed = fs::remove_file(&temporary);
    written.and(removed).map_err(cannot)
}

/// Creates a new, empty file in `folder`.
fn create_in(folder: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!(".wgformer-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            // Left by a process that died and had this number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens the file `path` to read it.
pub(crate) fn open(path: &Path) -> Result<File> {
    if path.is_dir() {
        return Err(Error::file(path, "cannot be read: it is a folder"));
    }
    File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::file(path, "there is no such file"),
        _ => Error::file(path, format!("cannot be read: {error}")),
    })
}

/// The whole file `path`, which may have `max_bytes` at most.
pub(crate) fn read_bounded(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?
        .take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| Error::file(path, format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > max_bytes {
        return Err(Error::file(path, format!("is larger than {max_bytes} bytes, the most that is read")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn writing_makes_and_replaces_a_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        for content in ["one", "", "two"] {
            write_atomically(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            assert_eq!(names(folder.path()), ["a.txt"]);
        }
    }

    #[test]
    fn a_write_that_fails_names_the_file_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for path in ["missing/a.txt", "sub", "sub/.."] {
            let path = folder.path().join(path);
            let error = write_atomically(&path, b"x").unwrap_err();
            assert!(matches!(&error, Error::File { path: named, .. } if *named == path), "{error}");
            assert_eq!(names(folder.path()), ["sub"]);
        }
    }

    #[test]
    fn a_rename_that_fails_leaves_no_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(300));
        assert!(write_atomically(&path, b"x").is_err());
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn names_left_by_others_are_stepped_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let next = TEMPORARY.load(Ordering::Relaxed);
        for number in next..next + 20 {
            fs::write(folder.path().join(format!(".wgformer-{}-{number}.tmp", std::process::id())), "theirs")
                .unwrap();
        }
        write_atomically(&path, b"mine").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(names(folder.path()).len(), 21);
    }

    #[test]
    fn reading_has_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        let cases: [(&Path, u64, &str); 3] = [
            (&path, 4, "is larger than 4 bytes"),
            (folder.path(), 4, "it is a folder"),
            (&folder.path().join("b"), 4, "there is no such file"),
        ];
        for (path, bound, problem) in cases {
            let message = read_bounded(path, bound).unwrap_err().to_string();
            assert!(message.contains(problem) && message.contains(&*path.to_string_lossy()), "{message}");
        }
    }
}
