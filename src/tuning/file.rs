//! The file that holds what was measured on an adapter.

use super::{AdapterKey, Family, Query, Rule, Tuning, Variant, one};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The most bytes of a file.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// The format that is written and read.
const FORMAT: u32 = 1;

/// The best variant for one work.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The work.
    pub query: Query,
    /// The variant, the shipped table's where none was clearly faster.
    pub variant: &'static Variant,
    /// The time of the shipped table's variant by that of this one.
    pub gain: f64,
}

/// What was measured on an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningFile {
    /// The adapter, with its driver: other ones may be fastest with other variants.
    pub adapter: AdapterKey,
    /// The works.
    pub measured: Vec<Measured>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: u32,
    adapter: AdapterKey,
    measured: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    family: String,
    kernel: String,
    shape: BTreeMap<String, usize>,
    variant: String,
    gain: f64,
}

impl Entry {
    fn of(measured: &Measured) -> Entry {
        let Measured { query, variant, gain } = measured;
        Entry {
            family: query.family.name().to_string(),
            kernel: query.kernel.to_string(),
            shape: query.shape().map(|(name, size)| (name.to_string(), size)).collect(),
            variant: variant.name.to_string(),
            gain: *gain,
        }
    }

    fn measured(&self) -> Result<Measured, String> {
        let family = Family::ALL.into_iter().find(|family| family.name() == self.family);
        let family = family.ok_or_else(|| format!("there is no family {:?}", self.family))?;
        let kernel = family.kernels().iter().find(|name| **name == self.kernel);
        let kernel = kernel.ok_or_else(|| format!("{} has no kernel {:?}", family.name(), self.kernel))?;
        let names = family.sizes();
        let sizes: Option<Vec<usize>> =
            names.iter().map(|&name| self.shape.get(name).copied().filter(|&size| size > 0)).collect();
        let sizes = sizes.filter(|sizes| sizes.len() == self.shape.len());
        let sizes = sizes.ok_or_else(|| format!("the shape is not of {}, all above 0", names.join(", ")))?;
        if !(self.gain.is_finite() && self.gain > 0.0) {
            return Err(format!("a gain of {} is none", self.gain));
        }
        let variant = family.variant(&self.variant).map_err(|e| e.to_string())?;
        Ok(Measured { query: Query::new(family, kernel, &sizes), variant, gain: self.gain })
    }
}

impl TuningFile {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// When it is none, or names what this version does not have.
    pub fn parse(text: &str) -> Result<TuningFile> {
        // It may quote the file, which may hold anything.
        let broken = |problem: String| {
            let line: String =
                problem.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect();
            Error::Input(format!("no tuning of wgformer: {line}"))
        };
        let Text { format, adapter, measured } =
            serde_json::from_str(text).map_err(|e| broken(e.to_string()))?;
        if format != FORMAT {
            return Err(broken(format!("its format is {format}, and {FORMAT} is read")));
        }
        let one = |(i, entry): (usize, &Entry)| {
            entry.measured().map_err(|problem| broken(format!("measured[{i}]: {problem}")))
        };
        let measured = measured.iter().enumerate().map(one).collect::<Result<_>>()?;
        Ok(TuningFile { adapter, measured })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or [`TuningFile::parse`] refuses it.
    pub fn read(path: &Path) -> Result<TuningFile> {
        let bytes = crate::fs::read_bounded(path, MAX_FILE_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| Error::file(path, "is not UTF-8"))?;
        TuningFile::parse(text).map_err(|e| Error::file(path, e))
    }

    /// The text of the file.
    ///
    /// # Errors
    /// When a gain is no number.
    pub fn to_json(&self) -> Result<String> {
        let measured = self.measured.iter().map(Entry::of).collect();
        let text = Text { format: FORMAT, adapter: self.adapter.clone(), measured };
        let text = serde_json::to_string_pretty(&text);
        Ok(text.map_err(|e| Error::Input(e.to_string()))? + "\n")
    }

    /// Writes a file: a reader finds the whole old one or the whole new one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        crate::fs::write_atomically(path, self.to_json()?.as_bytes())
    }

    /// The rules: what was measured holds for its shape. A variant that gains holds for smaller shapes too, down to half of
    /// each size, so no kernel loops longer than it did when it was verified; of several such the one of the smallest
    /// shape. The shipped table decides the rest.
    ///
    /// # Errors
    /// When the device has another adapter or driver.
    pub fn tuning(&self, adapter: &AdapterKey) -> Result<Tuning> {
        if self.adapter != *adapter {
            let problem =
                format!("measured on {}, and this is {adapter}: run `wgformer tune` here", self.adapter);
            return Err(Error::Input(
                problem.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            ));
        }
        let rule = |m: &Measured, least: fn(usize) -> usize| {
            one(m.variant, m.query.kernel, m.query.shape.map(|size| [least(size), size]))
        };
        let mut near: Vec<&Measured> = self.measured.iter().filter(|m| m.gain > 1.0).collect();
        near.sort_by_key(|m| m.query.shape.iter().fold(1u128, |n, &size| n.saturating_mul(size as u128)));
        let exact = self.measured.iter().map(|m| rule(m, |size| size));
        let own: Vec<Rule> =
            exact.chain(near.into_iter().map(|m| rule(m, |size| size.div_ceil(2)))).collect();
        Ok(Tuning { own: Arc::from(own) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::DeviceProfile;

    fn key() -> AdapterKey {
        let [name, backend, driver, driver_version] = ["a card", "vulkan", "a driver", ""].map(String::from);
        AdapterKey { name, backend, driver, driver_version }
    }

    fn product(m: usize, variant: &str, gain: f64) -> Measured {
        let query = Query::new(Family::MatMul, "NN", &[m, 512, 512, 1]);
        Measured { query, variant: Family::MatMul.variant(variant).unwrap(), gain }
    }

    fn file() -> TuningFile {
        let rows = Query::new(Family::Rows, "softmax", &[64, 512, 4]);
        let variant = Family::Rows.variant("workgroup 64").unwrap();
        let measured = vec![
            product(64, "tile 64x64", 1.25),
            product(100, "vector 4", 1.1),
            Measured { query: rows, variant, gain: 1.0 },
        ];
        TuningFile { adapter: key(), measured }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let text = file().to_json().unwrap();
        assert_eq!(TuningFile::parse(&text).unwrap(), file());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        file().write(&path).unwrap();
        assert_eq!(TuningFile::read(&path).unwrap(), file());
    }

    #[test]
    fn what_was_measured_holds_for_its_shape_and_down_to_half() {
        let tuning = file().tuning(&key()).unwrap();
        assert!(!tuning.is_shipped());
        let chosen = |m: usize, n: usize, kernel: &'static str| {
            let query = Query::new(Family::MatMul, kernel, &[m, n, 512, 1]);
            tuning.choose(&DeviceProfile::portable(), &query).unwrap().name()
        };
        let cases =
            [(64, "tile 64x64"), (50, "tile 64x64"), (32, "tile 64x64"), (65, "vector 4"), (100, "vector 4")];
        for (m, want) in cases {
            assert_eq!(chosen(m, 512, "NN"), want, "{m}");
        }
        for (m, n, kernel) in [(31, 512, "NN"), (101, 512, "NN"), (64, 513, "NN"), (64, 512, "NT")] {
            assert_eq!(chosen(m, n, kernel), "tile 32x32", "{m} {n} {kernel}");
        }
        let rows = |rows: usize| {
            let query = Query::new(Family::Rows, "softmax", &[rows, 512, 4]);
            tuning.choose(&DeviceProfile::portable(), &query).unwrap().name()
        };
        assert_eq!((rows(64), rows(63)), ("workgroup 64", "workgroup 256"));
        let other = AdapterKey { driver_version: "2".into(), ..key() };
        let error = file().tuning(&other).unwrap_err().to_string();
        assert!(
            error.contains("measured on a card, vulkan, a driver, and this is a card, vulkan, a driver, 2"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_none_is_refused_in_one_line() {
        let text = file().to_json().unwrap();
        let deep = "[".repeat(100_000);
        let cases = [
            (String::new(), "EOF"),
            (deep, "invalid type: sequence"),
            ("[]".to_string(), "invalid"),
            (text.replace("\"format\": 1", "\"format\": 2"), "its format is 2, and 1 is read"),
            (text.replace("\"format\": 1,", "\"format\": 1, \"more\": 1,"), "unknown field `more`"),
            (text.replace("a card", "a card\", \"x\": \""), "unknown field `x`"),
            (text.replace("\"softmax\"", "\"soft\""), "measured[2]: rows has no kernel \"soft\""),
            (text.replace("\"rows\",", "\"row\","), "measured[2]: there is no family \"row\""),
            (text.replace("workgroup 64", "group"), "measured[2]: rows: has no variant \"group\"; there are"),
            (text.replace("\"m\": 64", "\"m\": 0"), "measured[0]: the shape is not of m, n, k, batch"),
            (text.replace("\"m\": 64", "\"x\": 64"), "measured[0]: the shape is not of m, n, k, batch"),
            (text.replace("\"m\": 64", "\"m\": 64, \"x\": 1"), "measured[0]: the shape is not of"),
            (text.replace("\"m\": 64", "\"m\": -1"), "invalid value"),
            (text.replace("\"m\": 64", "\"m\": 99999999999999999999"), "invalid type"),
            (text.replace("1.25", "-1.25"), "measured[0]: a gain of -1.25 is none"),
            (text.replace("1.25", "1e999"), "out of range"),
            (text.replace("\"format\": 1,", "\"format\": 1, \"\\n\\u001b[2J\": 1,"), "unknown field `  [2J`"),
        ];
        for (text, want) in cases {
            let error = TuningFile::parse(&text).unwrap_err().to_string();
            assert!(error.starts_with("no tuning of wgformer: ") && error.contains(want), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        // What is cut anywhere is refused too.
        for end in 0..text.trim_end().len() {
            assert!(TuningFile::parse(&text[..end]).is_err(), "{end}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, [b'"', 0xff]).unwrap();
        assert!(TuningFile::read(&path).unwrap_err().to_string().ends_with("is not UTF-8"));
        std::fs::write(&path, vec![b' '; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(TuningFile::read(&path).unwrap_err().to_string().contains("is larger than"));
    }
}
