//! The files: an index of cases with settings, and each case's tensors. They come from elsewhere, so everything is
//! checked before it is used: sizes, names, shapes, element types.

use crate::fs::read_bounded;
use crate::{Error, HostTensor, Result};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const INDEX_BYTES: u64 = 16 << 20;
const CASE_BYTES: u64 = 512 << 20;

/// The cases that a folder has, with their settings.
pub(super) struct Index {
    pub entries: Vec<(String, Value)>,
}

impl Index {
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("index.json");
        let bytes = read_bounded(&path, INDEX_BYTES)?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::file(&path, format!("is no valid JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Index { entries: map.into_iter().collect() }),
            _ => Err(Error::file(&path, "expected an object with an entry for each case")),
        }
    }
}

/// A tensor of a file.
struct Stored {
    shape: Vec<usize>,
    values: Values,
}

enum Values {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
    Other(String),
}

/// One case: its settings and tensors, and which of them were asked for.
pub(super) struct CaseData {
    pub name: String,
    pub path: PathBuf,
    settings: Map<String, Value>,
    tensors: BTreeMap<String, Stored>,
    used: RefCell<BTreeSet<String>>,
}

impl CaseData {
    /// Reads the file of a case and checks it against its entry of the index.
    pub fn read(dir: &Path, name: &str, entry: &Value) -> Result<Self> {
        let index = dir.join("index.json");
        if name.is_empty() || name.contains(['/', '\\', '\0', ':']) || name.starts_with('.') {
            return Err(Error::file(index, format!("case {name:?}: that is no plain file name")));
        }
        let Value::Object(settings) = entry else {
            return Err(Error::file(index, format!("case {name}: expected an object")));
        };
        let path = dir.join(format!("{name}.safetensors"));
        let bytes = read_bounded(&path, CASE_BYTES)?;
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|e| Error::file(&path, format!("is no valid safetensors file: {e}")))?;
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let values = values(view.dtype(), view.data());
            (name, Stored { shape: view.shape().to_vec(), values })
        });
        let tensors = tensors.collect();
        let data = CaseData {
            name: name.into(),
            path,
            settings: settings.clone(),
            tensors,
            used: RefCell::default(),
        };
        data.check_against_index()?;
        Ok(data)
    }

    /// An error of this case's file.
    pub fn problem(&self, problem: impl ToString) -> Error {
        Error::file(&self.path, problem.to_string())
    }

    /// An error of this case's entry of the index.
    fn bad_setting(&self, setting: &str, expected: &str) -> Error {
        let index = self.path.with_file_name("index.json");
        let got = self.settings.get(setting).map_or("nothing".to_string(), |v| v.to_string());
        Error::file(index, format!("case {}: {setting}: expected {expected}, got {got}", self.name))
    }

    fn check_against_index(&self) -> Result<()> {
        let listed = match self.settings.get("tensors") {
            None => return Ok(()),
            Some(Value::Object(listed)) => listed,
            Some(_) => return Err(self.bad_setting("tensors", "an object with the shape of each tensor")),
        };
        for (name, shape) in listed {
            let Some(stored) = self.tensors.get(name) else {
                return Err(self.problem(format!("there is no tensor {name}, but index.json lists it")));
            };
            let same = shape.as_array().is_some_and(|dims| {
                dims.len() == stored.shape.len()
                    && dims.iter().zip(&stored.shape).all(|(a, &b)| a.as_u64() == Some(b as u64))
            });
            if !same {
                return Err(self.problem(format!(
                    "tensor {name} has the shape {:?}, but index.json says {shape}",
                    stored.shape
                )));
            }
        }
        Ok(())
    }

    /// An error when a tensor was neither given to the device nor compared.
    pub fn all_used(&self) -> Result<()> {
        let used = self.used.borrow();
        match self.tensors.keys().find(|name| !used.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                Err(self
                    .problem(format!("tensor {name} was not compared: such a case has none of this name")))
            }
        }
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        let Some(stored) = self.tensors.get(name) else {
            return Err(self.problem(format!("there is no tensor {name}")));
        };
        if stored.shape.contains(&0) {
            return Err(self.problem(format!("tensor {name} is empty: its shape is {:?}", stored.shape)));
        }
        self.used.borrow_mut().insert(name.to_string());
        Ok(stored)
    }

    /// The shape of a tensor, which must have this many dimensions.
    pub fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.stored(name)?.shape;
        shape.as_slice().try_into().map_err(|_| {
            self.problem(format!("tensor {name}: expected {N} dimensions, got the shape {shape:?}"))
        })
    }

    /// The elements of a tensor of floats, in whatever shape.
    pub fn floats_of_any_shape(&self, name: &str) -> Result<(&[usize], &[f32])> {
        let stored = self.stored(name)?;
        match &stored.values {
            Values::Floats(values) => Ok((&stored.shape, values)),
            Values::Integers(_) => Err(self.problem(format!("tensor {name}: expected F32, got integers"))),
            Values::Other(dtype) => Err(self.problem(format!("tensor {name}: expected F32, got {dtype}"))),
        }
    }

    /// The elements of a tensor of floats of this shape.
    pub fn floats(&self, name: &str, shape: &[usize]) -> Result<&[f32]> {
        let (got, values) = self.floats_of_any_shape(name)?;
        self.check_shape(name, shape, got)?;
        Ok(values)
    }

    /// [`Self::floats`] where there is such a tensor.
    pub fn floats_if_any(&self, name: &str, shape: &[usize]) -> Result<Option<&[f32]>> {
        self.has(name).then(|| self.floats(name, shape)).transpose()
    }

    /// A tensor of finite floats, to be given to the device.
    pub fn input(&self, name: &str, shape: &[usize]) -> Result<HostTensor> {
        let values = self.floats(name, shape)?;
        if let Some(i) = values.iter().position(|x| !x.is_finite()) {
            return Err(
                self.problem(format!("tensor {name}: element {i} is {}: inputs must be finite", values[i]))
            );
        }
        Ok(HostTensor::f32(shape, values.to_vec()))
    }

    /// The elements of a tensor of integers or truth values of this shape.
    pub fn integers(&self, name: &str, shape: &[usize]) -> Result<&[i64]> {
        let stored = self.stored(name)?;
        self.check_shape(name, shape, &stored.shape)?;
        match &stored.values {
            Values::Integers(values) => Ok(values),
            Values::Floats(_) => Err(self.problem(format!("tensor {name}: expected integers, got F32"))),
            Values::Other(dtype) => {
                Err(self.problem(format!("tensor {name}: expected integers, got {dtype}")))
            }
        }
    }

    /// A tensor of ids below `below`; those equal to `ignored` become `stands_for`.
    pub fn ids(
        &self,
        name: &str,
        shape: &[usize],
        below: usize,
        ignored: i64,
        stands_for: u32,
    ) -> Result<Vec<u32>> {
        let id = |(i, &x): (usize, &i64)| match u32::try_from(x) {
            _ if x == ignored => Ok(stands_for),
            Ok(id) if (id as usize) < below => Ok(id),
            _ => Err(self.problem(format!(
                "tensor {name}: element {i} is {x}: expected an id from 0 to {}",
                below - 1
            ))),
        };
        self.integers(name, shape)?.iter().enumerate().map(id).collect()
    }

    fn check_shape(&self, name: &str, want: &[usize], got: &[usize]) -> Result<()> {
        if got == want || (want == [1] && got.is_empty()) {
            return Ok(());
        }
        Err(self.problem(format!("tensor {name}: expected the shape {want:?}, got {got:?}")))
    }

    /// A setting that is a finite number.
    pub fn number(&self, setting: &str) -> Result<Option<f64>> {
        match self.settings.get(setting) {
            None => Ok(None),
            Some(v) => match v.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => Err(self.bad_setting(setting, "a number")),
            },
        }
    }

    /// A setting that is a whole number, below zero too.
    pub fn integer(&self, setting: &str) -> Result<Option<i64>> {
        match self.settings.get(setting) {
            None => Ok(None),
            Some(v) => v.as_i64().map(Some).ok_or_else(|| self.bad_setting(setting, "a whole number")),
        }
    }

    /// A setting that counts something.
    pub fn count(&self, setting: &str) -> Result<Option<usize>> {
        match self.integer(setting)? {
            None => Ok(None),
            Some(n) if n > 0 && n <= i32::MAX as i64 => Ok(Some(n as usize)),
            Some(_) => Err(self.bad_setting(setting, "a number of at least 1")),
        }
    }

    /// Checks a number of something that tensors tell against the setting, where there is one.
    pub fn check_count(&self, setting: &str, told: usize) -> Result<()> {
        match self.count(setting)? {
            Some(n) if n != told => Err(self.bad_setting(
                setting,
                &format!("{told}, which is what the tensors of {} say", self.path.display()),
            )),
            _ => Ok(()),
        }
    }

    /// A setting that is a number between two, or `otherwise`.
    pub fn number_between(&self, setting: &str, least: f64, most: f64, otherwise: f64) -> Result<f64> {
        let x = self.number(setting)?.unwrap_or(otherwise);
        if (least..=most).contains(&x) {
            return Ok(x);
        }
        Err(self.bad_setting(setting, &format!("a number from {least} to {most}")))
    }

    /// A setting that is a list of numbers.
    pub fn numbers<const N: usize>(&self, setting: &str, otherwise: [f64; N]) -> Result<[f64; N]> {
        let Some(value) = self.settings.get(setting) else { return Ok(otherwise) };
        let list: Option<Vec<f64>> = value.as_array().and_then(|l| l.iter().map(Value::as_f64).collect());
        let expected = || self.bad_setting(setting, &format!("{N} numbers"));
        list.and_then(|l| l.try_into().ok()).ok_or_else(expected)
    }

    /// A setting that is a text.
    pub fn text(&self, setting: &str) -> Result<Option<&str>> {
        match self.settings.get(setting) {
            None => Ok(None),
            Some(v) => v.as_str().map(Some).ok_or_else(|| self.bad_setting(setting, "a text")),
        }
    }

    /// A setting that is one of these texts, or `otherwise`; what stands beside the text is returned.
    pub fn one_of<T: Copy>(&self, setting: &str, choices: &[(&str, T)], otherwise: T) -> Result<T> {
        let Some(text) = self.text(setting)? else { return Ok(otherwise) };
        let known = choices.iter().find(|c| c.0 == text).map(|c| c.1);
        let names = || choices.iter().map(|c| c.0).collect::<Vec<_>>().join(" or ");
        known.ok_or_else(|| self.bad_setting(setting, &names()))
    }

    /// A setting that is true or false, or `otherwise`.
    pub fn flag(&self, setting: &str, otherwise: bool) -> Result<bool> {
        match self.settings.get(setting) {
            None => Ok(otherwise),
            Some(v) => v.as_bool().ok_or_else(|| self.bad_setting(setting, "true or false")),
        }
    }
}

/// The elements of a tensor; safetensors has checked that their bytes are as many as the shape says.
fn values(dtype: Dtype, bytes: &[u8]) -> Values {
    macro_rules! integers {
        ($t:ty) => {
            Values::Integers(
                // 64-bit ids above i64::MAX become negative, which no id may be.
                bytes
                    .as_chunks::<{ size_of::<$t>() }>()
                    .0
                    .iter()
                    .map(|b| <$t>::from_le_bytes(*b) as i64)
                    .collect(),
            )
        };
    }
    match dtype {
        Dtype::F32 => {
            Values::Floats(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        Dtype::BOOL => Values::Integers(bytes.iter().map(|&b| (b != 0) as i64).collect()),
        Dtype::U8 => integers!(u8),
        Dtype::I8 => integers!(i8),
        Dtype::U16 => integers!(u16),
        Dtype::I16 => integers!(i16),
        Dtype::U32 => integers!(u32),
        Dtype::I32 => integers!(i32),
        Dtype::U64 => integers!(u64),
        Dtype::I64 => integers!(i64),
        other => Values::Other(format!("{other:?}")),
    }
}
