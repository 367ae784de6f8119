//! Parameters: their names, shapes, first values, and where they lie in flat pages.
//!
//! A page is one state. Gradients and moments have pages of the same layout, so that clipping, Adam and checkpoints are
//! one pass over a page.

use super::config::Precision;
use crate::graph::{ALIGN, Graph, ValueId};
use crate::plan::ALIGN_BYTES;
use crate::rng::{Rng, fnv1a};
use crate::{DType, DeviceProfile, Error, Result, Shape, TensorType};
use std::collections::HashMap;

/// A page holds at most this many elements (64 MiB of 32-bit floats), unless one parameter alone is larger.
const PAGE: usize = 16 << 20;

/// How a parameter gets its first value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010, equation 16).
    Xavier {
        /// Inputs of the layer.
        fan_in: usize,
        /// Outputs of the layer.
        fan_out: usize,
    },
    /// Normal with this standard deviation.
    Normal(f64),
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name: `encoder.layers.0.self_attn.qkv.weight`.
    pub name: String,
    /// Its shape; weights of linear layers are [in, out].
    pub shape: Shape,
    /// How it gets its first value.
    pub init: Init,
    /// Which page it lies in.
    pub page: usize,
    /// Its first element there, at a multiple of 256 bytes.
    pub start: usize,
}

impl Parameter {
    /// Its first values.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        // A generator for each name: a layer more does not change the others.
        let mut rng = Rng::new(seed ^ fnv1a(self.name.as_bytes()));
        let n = self.shape.elements();
        match self.init {
            Init::Zeros => vec![0.0; n],
            Init::Ones => vec![1.0; n],
            Init::Xavier { fan_in, fan_out } => {
                let limit = (6.0 / (fan_in + fan_out) as f64).sqrt();
                (0..n).map(|_| ((rng.uniform_f64() * 2.0 - 1.0) * limit) as f32).collect()
            }
            Init::Normal(deviation) => (0..n).map(|_| (rng.normal() * deviation) as f32).collect(),
        }
    }
}

/// All parameters of a model, in the order in which the model names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParameterLayout {
    parameters: Vec<Parameter>,
    index: HashMap<String, usize>,
    pages: Vec<usize>,
    precision: Precision,
}

impl ParameterLayout {
    /// The parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The length of each page in elements.
    pub fn pages(&self) -> &[usize] {
        &self.pages
    }

    /// The type of the numbers in the pages.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The number of elements of all parameters.
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(|p| p.shape.elements()).sum()
    }

    /// A parameter by name.
    pub fn get(&self, name: &str) -> Option<&Parameter> {
        self.index.get(name).map(|&i| &self.parameters[i])
    }

    /// Checks that a device can hold each parameter; a plan would name only the page that a large one lies in.
    ///
    /// # Errors
    /// Names the first parameter that is too large, and the limit.
    pub fn check_limits(&self, profile: &DeviceProfile) -> Result<()> {
        let limits = [
            ("max_storage_buffer_binding_size", profile.max_binding_bytes),
            ("max_buffer_size", profile.max_buffer_bytes),
        ];
        for p in &self.parameters {
            let needed = TensorType::new(self.precision.dtype(), p.shape.clone()).bytes();
            if let Some(&(limit, allowed)) = limits.iter().find(|(_, allowed)| needed > *allowed) {
                let tensor = format!("{} {}", p.name, p.shape);
                return Err(Error::Limit { limit, needed, allowed, tensor });
            }
        }
        Ok(())
    }

    /// The pages with their first values.
    pub fn initial(&self, seed: u64) -> Vec<Vec<f32>> {
        let mut pages: Vec<Vec<f32>> = self.pages.iter().map(|&n| vec![0.0; n]).collect();
        for p in &self.parameters {
            let values = p.initial(seed);
            pages[p.page][p.start..p.start + values.len()].copy_from_slice(&values);
        }
        pages
    }

    /// The elements of a page that weight decay applies to: the matrices, which stand before the vectors.
    pub fn decayed(&self, page: usize) -> std::ops::Range<usize> {
        let matrices = self.parameters.iter().filter(|p| p.page == page && p.shape.rank() > 1);
        let end = matrices.map(|p| p.start + p.shape.elements().next_multiple_of(ALIGN)).max();
        0..end.unwrap_or(0)
    }

    fn place(&mut self, name: String, shape: Shape, init: Init) {
        let n = shape.elements().next_multiple_of(ALIGN_BYTES as usize / self.precision.dtype().bytes());
        let fits = self.pages.last().is_some_and(|&used| used + n <= PAGE);
        if !fits {
            self.pages.push(0);
        }
        let page = self.pages.len() - 1;
        let start = self.pages[page];
        self.pages[page] += n;
        self.index.insert(name.clone(), self.parameters.len());
        self.parameters.push(Parameter { name, shape, init, page, start });
    }
}

/// The name of the state that holds a page of parameters (`what` is `parameters`, `gradients`, or an optimiser's
/// moment).
pub fn page_name(what: &str, page: usize) -> String {
    format!("{what}.{page}")
}

/// Hands a graph its parameters as views of the pages; or, while declaring, notes which there are.
#[derive(Debug)]
pub struct Parameters<'a> {
    known: Option<&'a ParameterLayout>,
    declared: Vec<(String, Shape, Init)>,
    pages: Vec<ValueId>,
    views: HashMap<String, ValueId>,
}

impl<'a> Parameters<'a> {
    /// Notes the parameters that are asked for. The graph that is built meanwhile is of no other use.
    pub fn declaring() -> Self {
        Parameters { known: None, declared: Vec::new(), pages: Vec::new(), views: HashMap::new() }
    }

    /// Gives views of the pages of a layout, which are states of `graph`.
    pub fn of(layout: &'a ParameterLayout, graph: &mut Graph) -> Self {
        let dtype = layout.precision.dtype();
        let page =
            |(i, &n): (usize, &usize)| graph.state(page_name("parameters", i), TensorType::new(dtype, [n]));
        let pages = layout.pages.iter().enumerate().map(page).collect();
        Parameters { known: Some(layout), declared: Vec::new(), pages, views: HashMap::new() }
    }

    /// The type of the parameters.
    pub fn dtype(&self) -> DType {
        self.known.map_or(DType::F32, |layout| layout.precision.dtype())
    }

    /// What was declared.
    pub fn into_layout(self) -> ParameterLayout {
        self.into_layout_of(Precision::F32)
    }

    /// What was declared, with pages of this type.
    pub fn into_layout_of(self, precision: Precision) -> ParameterLayout {
        // Matrices before vectors, so that weight decay applies to a range.
        let (matrices, vectors): (Vec<_>, Vec<_>) =
            self.declared.into_iter().partition(|(_, s, _)| s.rank() > 1);
        let mut layout = ParameterLayout { precision, ..Default::default() };
        for (name, shape, init) in matrices.into_iter().chain(vectors) {
            layout.place(name, shape, init);
        }
        layout
    }

    /// The pages as states.
    pub fn pages(&self) -> &[ValueId] {
        &self.pages
    }

    /// The view of a parameter that was asked for, in this graph.
    pub fn view(&self, name: &str) -> Option<ValueId> {
        self.views.get(name).copied()
    }

    /// A parameter by its full name; the same view when asked twice.
    ///
    /// # Errors
    /// When the layout has none of this name, or one of another shape.
    pub fn get(
        &mut self,
        graph: &mut Graph,
        name: String,
        shape: impl Into<Shape>,
        init: Init,
    ) -> Result<ValueId> {
        let shape = shape.into();
        if let Some(&view) = self.views.get(&name) {
            return Ok(view);
        }
        let view = match self.known {
            None => {
                self.declared.push((name.clone(), shape.clone(), init));
                graph.state(name.clone(), TensorType::f32(shape))
            }
            Some(layout) => match layout.get(&name) {
                Some(p) if p.shape == shape => {
                    let ty = TensorType::new(layout.precision.dtype(), shape);
                    graph.view(name.clone(), self.pages[p.page], p.start, ty)?
                }
                p => {
                    let got = p.map_or("nothing".to_string(), |p| p.shape.to_string());
                    return Err(Error::shape("parameters", name, shape, got));
                }
            },
        };
        self.views.insert(name, view);
        Ok(view)
    }
}
