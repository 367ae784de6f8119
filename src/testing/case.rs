//! Runs cases: the reference's gradient against finite differences, then every kernel variant, checked and unchecked,
//! against the reference.

use wgformer::gpu::{Gpu, Memory};
use wgformer::graph::{Graph, Interpreter, Role, ValueId, to_host};
use wgformer::plan::Plan;
use wgformer::rng::Rng;
use wgformer::{DType, DeviceClass, DeviceProfile, HostTensor, Result, Shape, Tensor64, TensorType};

/// What a case builds: a graph, and values for its inputs and states.
pub struct Build {
    graph: Graph,
    rng: Rng,
    given: Vec<(ValueId, Tensor64)>,
    wrt: Vec<ValueId>,
}

impl Build {
    /// The graph to add to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// An input of normally distributed values times `scale`, differentiated by.
    pub fn normal(&mut self, name: &str, shape: impl Into<Shape>, scale: f64) -> ValueId {
        let shape = shape.into();
        let data: Vec<f32> = (0..shape.elements()).map(|_| (self.rng.normal() * scale) as f32).collect();
        self.differentiable(name, HostTensor::f32(shape, data))
    }

    /// An input of these values, differentiated by.
    pub fn differentiable(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.fixed(name, value);
        self.wrt.push(id);
        id
    }

    /// An input of these values, not differentiated by.
    pub fn fixed(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.graph.input(name, value.ty());
        self.given.push((id, value.to_f64()));
        id
    }

    /// An input of random ids below `below`.
    #[allow(dead_code)]
    pub fn ids(&mut self, name: &str, shape: impl Into<Shape>, below: u32) -> ValueId {
        let shape = shape.into();
        let data = (0..shape.elements()).map(|_| self.rng.below(below as u64) as u32).collect();
        self.fixed(name, HostTensor::u32(shape, data))
    }

    /// An input of these lengths, one a batch row.
    #[allow(dead_code)]
    pub fn lengths(&mut self, name: &str, lengths: &[u32]) -> ValueId {
        self.fixed(name, HostTensor::u32([lengths.len()], lengths.to_vec()))
    }

    /// A state with these values before the run.
    pub fn state(&mut self, name: &str, value: HostTensor) -> ValueId {
        let id = self.graph.state(name, value.ty());
        self.given.push((id, value.to_f64()));
        id
    }
}

type Builder = Box<dyn Fn(&mut Build) -> Result<Vec<ValueId>> + Send + Sync>;

/// One case: a graph around one op, and what to ask of it.
pub struct Case {
    pub name: String,
    build: Builder,
    reduction: usize,
    seeded: Vec<usize>,
    ones: bool,
    gradient: bool,
    slack: f64,
}

impl Case {
    /// A case of this name; the closure builds the graph and gives its outputs, of which the first is differentiated.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&mut Build) -> Result<Vec<ValueId>> + Send + Sync + 'static,
    ) -> Self {
        Case {
            name: name.into(),
            build: Box::new(build),
            reduction: 64,
            seeded: vec![0],
            ones: false,
            gradient: true,
            slack: 1.0,
        }
    }

    /// The longest reduction: the number of terms in a sum that rounds after each.
    #[allow(dead_code)]
    pub fn reduction(mut self, terms: usize) -> Self {
        self.reduction = terms.max(1);
        self
    }

    /// The outputs that gradients come from (the first, unless said).
    #[allow(dead_code)]
    pub fn seeds(mut self, outputs: &[usize]) -> Self {
        self.seeded = outputs.to_vec();
        self
    }

    /// The gradient that comes from outside is one, as for a loss.
    #[allow(dead_code)]
    pub fn ones(mut self) -> Self {
        self.ones = true;
        self
    }

    /// Nothing is differentiated.
    #[allow(dead_code)]
    pub fn values_only(mut self) -> Self {
        self.gradient = false;
        self
    }

    /// Multiplies the tolerance; say why where it is used.
    #[allow(dead_code)]
    pub fn slack(mut self, factor: f64) -> Self {
        self.slack = factor;
        self
    }

    /// The largest error allowed in a tensor whose largest magnitude is `largest`: rounding errors of a sum of K terms
    /// grow like sqrt(K) when they are random; 16 covers the functions (exp2, division, inverse square root: WGSL's
    /// accuracy table allows a few ULP each) and 4 the terms' own errors.
    fn bound(&self, largest: f64) -> f64 {
        self.slack * f32::EPSILON as f64 * (16.0 + 4.0 * (self.reduction as f64).sqrt()) * largest + 1e-37
    }

    /// Runs the case; the problems found, or the number of GPU runs compared.
    pub fn run(&self, gpu: &Gpu, seed: u64) -> std::result::Result<usize, Vec<String>> {
        self.try_run(gpu, seed).unwrap_or_else(|e| Err(vec![e.to_string()]))
    }

    fn try_run(&self, gpu: &Gpu, seed: u64) -> Result<std::result::Result<usize, Vec<String>>> {
        let mut build =
            Build { graph: Graph::new(), rng: Rng::new(seed), given: Vec::new(), wrt: Vec::new() };
        let outputs = (self.build)(&mut build)?;
        let mut problems = Vec::new();
        let mut fetched = outputs.clone();
        if self.gradient && !build.wrt.is_empty() {
            let gradients = self.differentiate(&mut build, &outputs)?;
            self.finite_differences(&mut build, &outputs, &gradients, &mut problems)?;
            fetched.extend(gradients.into_iter().map(|(_, d)| d));
        }
        let mut oracle = Interpreter::new();
        for (id, value) in &build.given {
            oracle.set(&build.graph, *id, value.clone())?;
        }
        oracle.run(&build.graph)?;

        let mut runs = 0;
        for (variant, profile) in profiles(gpu) {
            let unchecked = self.on_gpu(gpu, &profile, &build, &fetched)?;
            let checked = self.on_gpu(&gpu.checked(true), &profile, &build, &fetched)?;
            runs += 2;
            for ((id, got), again) in unchecked.iter().zip(&checked) {
                let name = &build.graph.value(*id).name;
                let want = oracle.get(&build.graph, *id)?;
                if let Some(p) = self.compare(&want, got) {
                    problems.push(format!("{variant}: {name}: {p}"));
                }
                if got.bytes() != again.1.bytes() {
                    problems.push(format!("{variant}: {name}: checked and unchecked modules differ"));
                }
            }
        }
        Ok(if problems.is_empty() { Ok(runs) } else { Err(problems) })
    }

    /// Appends the backward nodes; the inputs with their gradients.
    fn differentiate(&self, build: &mut Build, outputs: &[ValueId]) -> Result<Vec<(ValueId, ValueId)>> {
        let mut seeds = Vec::new();
        for &o in &self.seeded {
            let output = outputs[o];
            let shape = build.graph.shape(output).clone();
            let seed = if self.ones {
                let ones = vec![1.0; shape.elements()];
                build.graph.constant(format!("one {o}"), HostTensor::f32(shape, ones))
            } else {
                let data = (0..shape.elements()).map(|_| build.rng.normal() as f32).collect();
                build.fixed(&format!("d_out {o}"), HostTensor::f32(shape, data))
            };
            seeds.push((output, seed));
        }
        let wrt = build.wrt.clone();
        let gradients = build.graph.backward(&seeds, &wrt)?;
        Ok(wrt.into_iter().zip(gradients).filter_map(|(x, d)| Some((x, d?))).collect())
    }

    /// The derivative of sum(output * seed) along random directions, in f64, against the gradients.
    fn finite_differences(
        &self,
        build: &mut Build,
        outputs: &[ValueId],
        gradients: &[(ValueId, ValueId)],
        problems: &mut Vec<String>,
    ) -> Result<()> {
        let graph = build.graph.clone();
        let given = build.given.clone();
        let loss = |moved: &[(ValueId, Tensor64)]| -> Result<(f64, Interpreter)> {
            let mut run = Interpreter::new();
            for (id, value) in given.iter().chain(moved) {
                run.set(&graph, *id, value.clone())?;
            }
            run.run(&graph)?;
            let mut sum = 0.0;
            for &o in &self.seeded {
                let out = run.get(&graph, outputs[o])?;
                let seed = given.iter().find(|(id, _)| graph.value(*id).name == format!("d_out {o}"));
                sum += out
                    .data
                    .iter()
                    .enumerate()
                    .map(|(i, x)| x * seed.map_or(1.0, |s| s.1.data[i]))
                    .sum::<f64>();
            }
            Ok((sum, run))
        };
        let (_, base) = loss(&[])?;
        for (x, d) in gradients {
            let value = given.iter().find(|(id, _)| id == x).map(|(_, v)| v.clone()).unwrap();
            let d = base.get(&graph, *d)?;
            let size = value.data.iter().fold(0.0f64, |m, v| m.max(v.abs())).max(1e-30);
            let h = 1e-6 * size.min(1.0);
            for _ in 0..2 {
                let direction: Vec<f64> = value.data.iter().map(|_| build.rng.normal()).collect();
                let along = |h: f64| {
                    Tensor64::new(
                        value.shape.clone(),
                        value.data.iter().zip(&direction).map(|(v, e)| v + h * e).collect(),
                    )
                };
                let (plus, _) = loss(&[(*x, along(h))])?;
                let (minus, _) = loss(&[(*x, along(-h))])?;
                let numeric = (plus - minus) / (2.0 * h);
                let analytic: f64 = d.data.iter().zip(&direction).map(|(a, b)| a * b).sum();
                let magnitude: f64 = d.data.iter().map(|a| a * a).sum::<f64>().sqrt();
                // Central differences err by about h^2 of the third derivative, and by eps |loss| / h.
                let bound = 1e-4 * magnitude + 1e-13 * plus.abs().max(1e-3) / h;
                if !((numeric - analytic).abs() <= bound) {
                    let name = &graph.value(*x).name;
                    problems.push(format!(
                        "reference: d_{name}: finite difference {numeric}, gradient {analytic}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn on_gpu(
        &self,
        gpu: &Gpu,
        profile: &DeviceProfile,
        build: &Build,
        outputs: &[ValueId],
    ) -> Result<Vec<(ValueId, HostTensor)>> {
        let plan = Plan::new(&build.graph, outputs, profile)?;
        let memory = Memory::new(gpu);
        let mut executor = gpu.executor(plan, &memory)?;
        let mut states = Vec::new();
        for (id, value) in &build.given {
            let v = build.graph.value(*id);
            let host = to_host(v.ty.dtype, value);
            match v.role {
                Role::State => {
                    memory.write(&v.name, &host)?;
                    states.push(*id);
                }
                _ => executor.write(*id, &host)?,
            }
        }
        executor.run()?;
        let mut out = Vec::new();
        for &id in outputs {
            out.push((id, executor.read(id)?));
        }
        for id in states {
            out.push((id, memory.read(&build.graph.value(id).name)?));
        }
        Ok(out)
    }

    /// What is wrong with `got`, if anything: count, and the worst elements.
    fn compare(&self, want: &Tensor64, got: &HostTensor) -> Option<String> {
        let TensorType { shape, dtype } = got.ty();
        if shape.elements() != want.shape.elements() {
            return Some(format!("shape {shape}, expected {}", want.shape));
        }
        let largest = want.data.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let bound = if dtype == DType::U32 { 0.0 } else { self.bound(largest) };
        let got = got.to_f64();
        let mut wrong: Vec<(usize, f64)> = (0..got.data.len())
            .map(|i| (i, (got.data[i] - want.data[i]).abs()))
            .filter(|(_, e)| !(*e <= bound))
            .collect();
        if wrong.is_empty() {
            return None;
        }
        wrong.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
        let worst: Vec<String> = wrong
            .iter()
            .take(5)
            .map(|&(i, _)| format!("[{i}] got {:e}, expected {:e}", got.data[i], want.data[i]))
            .collect();
        Some(format!(
            "{} of {} elements wrong (bound {bound:.3e}): {}",
            wrong.len(),
            got.data.len(),
            worst.join("; ")
        ))
    }
}

/// The profiles to lower for: the adapter's own, and the least that every device has.
pub fn profiles(gpu: &Gpu) -> Vec<(&'static str, DeviceProfile)> {
    let own = gpu.profile().clone();
    let portable = DeviceProfile {
        max_binding_bytes: own.max_binding_bytes,
        max_buffer_bytes: own.max_buffer_bytes,
        ..DeviceProfile::portable()
    };
    let software = DeviceProfile { class: DeviceClass::Cpu, ..portable.clone() };
    vec![("own", own), ("portable", portable), ("portable software", software)]
}
