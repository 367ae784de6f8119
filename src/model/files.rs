//! Where the files of a model come from: a folder, or the memory of the program.

use crate::{Error, Result, fs};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The files of a model by name.
pub trait Files {
    /// The content of the file `name`, which may have `max_bytes` at most.
    ///
    /// # Errors
    /// Names the file, and what is wrong with it.
    fn read(&self, name: &str, max_bytes: u64) -> Result<Cow<'_, [u8]>>;

    /// The path of the file `name`, for messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// Files in a folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The files in the folder `path`.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Folder(path)),
            Ok(_) => Err(Error::file(path, "is not a folder, but a model is a folder")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::file(path, "there is no such model folder"))
            }
            Err(error) => Err(Error::file(path, format!("cannot be read: {error}"))),
        }
    }
}

impl Files for Folder {
    fn read(&self, name: &str, max_bytes: u64) -> Result<Cow<'_, [u8]>> {
        let path = self.path(name);
        // A pipe would be waited for.
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(Error::file(path, "is not a file"));
        }
        fs::read_bounded(&path, max_bytes).map(Cow::Owned)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Files in memory: `include_bytes!` puts them in a program.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// What messages call the folder.
    pub name: &'static str,
    /// Names and contents.
    pub files: &'static [(&'static str, &'static [u8])],
}

impl Files for Embedded {
    fn read(&self, name: &str, max_bytes: u64) -> Result<Cow<'_, [u8]>> {
        let found = self.files.iter().find(|(known, _)| *known == name);
        let (_, bytes) = found.ok_or_else(|| Error::file(self.path(name), "there is no such file"))?;
        if bytes.len() as u64 > max_bytes {
            let problem = format!("is larger than {max_bytes} bytes, the most that is read");
            return Err(Error::file(self.path(name), problem));
        }
        Ok(Cow::Borrowed(bytes))
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.name).join(name)
    }
}
