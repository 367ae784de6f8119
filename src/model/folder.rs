//! The folder that a model is written to.

use super::{CONFIG_FILE, METRICS_FILE, SOURCE_FILE, TARGET_FILE, WEIGHTS_FILE};
use crate::{Error, Result, fs};
use std::path::{Path, PathBuf};

/// A folder that a model is to be written to. Dropped before anything was written, it removes the folders it made.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    /// The folders that were made, the outermost first.
    made: Vec<PathBuf>,
}

impl OutputFolder {
    /// Checks that `path` can become a model folder, and does nothing yet.
    ///
    /// # Errors
    /// When it is a file, or holds a model and `overwrite` is not set.
    pub fn check(path: impl AsRef<Path>, overwrite: bool) -> Result<()> {
        let path = path.as_ref();
        if path.exists() && !path.is_dir() {
            return Err(Error::file(path, "cannot become a model folder: it is a file"));
        }
        if !overwrite {
            for name in [CONFIG_FILE, WEIGHTS_FILE, METRICS_FILE, SOURCE_FILE, TARGET_FILE] {
                if std::fs::symlink_metadata(path.join(name)).is_ok() {
                    let problem =
                        format!("holds a model already ({name}): choose another folder, or overwrite it");
                    return Err(Error::file(path, problem));
                }
            }
        }
        Ok(())
    }

    /// The folder of a model that is there already, to be written to again.
    ///
    /// # Errors
    /// When there is no such folder, or it cannot be written to.
    pub fn reopen(path: impl Into<PathBuf>, bytes: u64) -> Result<Self> {
        let path = path.into();
        fs::probe(&path, bytes)?;
        Ok(OutputFolder { path, made: Vec::new() })
    }

    /// Makes the folder where there is none, and checks that `bytes` can be written to it.
    ///
    /// # Errors
    /// As [`OutputFolder::check`], and when it cannot be written to.
    pub fn create(path: impl Into<PathBuf>, overwrite: bool, bytes: u64) -> Result<Self> {
        let path = path.into();
        OutputFolder::check(&path, overwrite)?;
        let mut folder = OutputFolder { path, made: Vec::new() };
        folder.make()?;
        fs::probe(&folder.path, bytes)?;
        Ok(folder)
    }

    fn make(&mut self) -> Result<()> {
        let missing: Vec<&Path> =
            self.path.ancestors().take_while(|a| !a.as_os_str().is_empty() && !a.exists()).collect();
        for folder in missing.into_iter().rev() {
            std::fs::create_dir(folder)
                .map_err(|error| Error::file(&self.path, format!("cannot be made: {error}")))?;
            self.made.push(folder.to_path_buf());
        }
        Ok(())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file `name`, where there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::file(path, format!("cannot be removed: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Writes the file `name`: all of it or nothing.
    ///
    /// # Errors
    /// When it cannot be written; an older file of this name is then as it was.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        fs::write_atomically(&self.path.join(name), bytes)
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // Only an empty one can be removed this way: after a write, nothing happens here.
            if std::fs::remove_dir(folder).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_folder_without_files() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a/b/c");
        drop(OutputFolder::create(&path, false, 100_000).unwrap());
        assert!(!base.path().join("a").exists());
        let folder = OutputFolder::create(&path, false, 0).unwrap();
        folder.write("x", b"1").unwrap();
        drop(folder);
        assert_eq!(std::fs::read(path.join("x")).unwrap(), b"1");
    }

    #[test]
    fn a_model_is_not_overwritten_unasked() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("notes.txt"), "mine").unwrap();
        OutputFolder::create(base.path(), false, 1).unwrap().write(WEIGHTS_FILE, b"old").unwrap();
        let error = OutputFolder::create(base.path(), false, 1).unwrap_err().to_string();
        assert!(error.contains("holds a model already (model.safetensors)"), "{error}");
        OutputFolder::create(base.path(), true, 1).unwrap();
        assert_eq!(std::fs::read(base.path().join(WEIGHTS_FILE)).unwrap(), b"old");
        let error = OutputFolder::create(base.path().join("notes.txt"), true, 1).unwrap_err().to_string();
        assert!(error.contains("it is a file"), "{error}");
        assert!(OutputFolder::create(base.path().join("notes.txt/sub"), true, 1).is_err());
    }
}
