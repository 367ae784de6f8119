//! A test of a compute shader of anybody's.

use super::device;
use super::instrument::Shader;
use super::printf::Printf;
use super::report::{Failure, Report};
use super::run::{Run, Slot};
use super::tolerance::{Expected, Tolerance};
use super::values::{Numbers, Values};
use crate::gpu::{Gpu, SoloKind};
use crate::{Error, Result, Shape, Tensor64};
use std::cell::RefCell;

/// A test of one entry point of a WGSL text: what goes into its buffers, and what should come out.
///
/// ```
/// use wgformer::testing::{KernelTest, Tolerance};
///
/// let scale = "
///     override FACTOR: f32;
///     @group(0) @binding(0) var<storage, read> x: array<f32>;
///     @group(0) @binding(1) var<storage, read_write> y: array<f32>;
///     @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
///         if id.x < arrayLength(&y) { y[id.x] = FACTOR * x[id.x]; }
///     }";
/// let x: Vec<f32> = (0..1000).map(|i| i as f32 / 7.0).collect();
/// let test = || {
///     KernelTest::new(scale, "main") // or include_str!("scale.wgsl")
///         .input("x", &x)
///         .output("y", x.len())
///         .constant("FACTOR", 2.0)
///         .groups([x.len().div_ceil(64), 1, 1])
/// };
/// test().check(|t| t.f64s("x").map(|x| 2.0 * x), Tolerance::ulp(1))?;
///
/// let failure = test().check(|t| t.f64s("x").map(|x| 3.0 * x), Tolerance::ulp(1)).unwrap_err();
/// assert!(failure.to_string().contains("y: 999 of 1000 elements are wrong; the 5 worst:"));
/// # Ok::<(), wgformer::testing::Failure>(())
/// ```
///
/// A `#[test]` returns `Result<(), Failure>`, or unwraps: both print the report.
///
/// Buffers have the names of the text's variables; group, binding and kind are read off the text. Their content is flat:
/// see [`Values`]. A test of several outputs says [`expect`](KernelTest::expect) for each, and then
/// [`run`](KernelTest::run).
///
/// It runs with the bounds checks that WebGPU asks for, and looks at everything in [`Check`](super::Check). The text runs
/// as it is, without its `printf`; it is changed for the last two checks, and to see what lies beyond a buffer whose
/// `arrayLength` it asks for. Identifiers that begin with `wgf_` are the harness's.
///
/// What it can not see: a write outside of an array of a fixed size that lands elsewhere in the same buffer, and a barrier
/// missing between invocations that the device runs in step anyway (those of one sub-group).
///
/// A builder's mistake (a name that is not in the text, say) is told by `check` or `run`; nothing here panics.
#[must_use = "a test does nothing until `check` or `run`"]
pub struct KernelTest<'a> {
    source: String,
    entry: String,
    gpu: Option<Gpu>,
    buffers: Vec<(String, Role)>,
    constants: Vec<(String, f64)>,
    groups: Option<Result<[u32; 3]>>,
    expected: Vec<(Option<String>, Reference<'a>, Tolerance)>,
    any_order: bool,
    zeroed: bool,
    printing: bool,
}

/// What a buffer is for, and what it holds before.
pub(super) enum Role {
    Input(Values),
    Output(Shape),
    InOut(Values),
    Scratch(Values),
}

/// Gives so many elements at most.
type Reference<'a> = Box<dyn FnOnce(&Given, usize) -> Vec<Expected> + 'a>;

/// What a reference computes with: the content of the test's buffers before the kernel runs.
pub struct Given<'t> {
    buffers: &'t [(String, Role)],
    unknown: RefCell<Option<String>>,
}

impl Given<'_> {
    /// The numbers of an input (or an `in_out`, or scratch, as it was before), in f64, which holds all of f32, u32 and i32
    /// exactly. A name that has none fails the test, and gives no numbers here.
    pub fn f64s(&self, name: &str) -> Numbers {
        let found = self.buffers.iter().find(|(n, _)| n == name);
        match found {
            Some((_, Role::Input(v) | Role::InOut(v) | Role::Scratch(v))) => {
                Numbers::new(v.0.iter().map(|&(kind, word)| kind.number(word)).collect())
            }
            _ => {
                *self.unknown.borrow_mut() = Some(name.to_string());
                Numbers::default()
            }
        }
    }
}

impl<'a> KernelTest<'a> {
    /// A test of the compute entry point `entry` of a WGSL text.
    pub fn new(wgsl: impl Into<String>, entry: impl Into<String>) -> Self {
        KernelTest {
            source: wgsl.into(),
            entry: entry.into(),
            gpu: None,
            buffers: Vec::new(),
            constants: Vec::new(),
            groups: None,
            expected: Vec::new(),
            any_order: false,
            zeroed: false,
            printing: false,
        }
    }

    /// A buffer that the kernel reads, storage or uniform. Where the text has it as `read_write`, the test sees to it that
    /// it is left as it was.
    pub fn input(self, name: &str, values: impl Into<Values>) -> Self {
        self.buffer(name, Role::Input(values.into()))
    }

    /// A buffer that the kernel writes, every element of it: a number of numbers, or a shape of which the report shows
    /// where in it an element is (`[rows, columns]`). An element of `vec4<f32>` counts as four.
    pub fn output(self, name: &str, shape: impl Into<Shape>) -> Self {
        self.buffer(name, Role::Output(shape.into()))
    }

    /// A buffer that the kernel changes, with what it holds before; compared like an output.
    pub fn in_out(self, name: &str, values: impl Into<Values>) -> Self {
        self.buffer(name, Role::InOut(values.into()))
    }

    /// A buffer that the kernel writes, with what it holds before, where what it holds afterwards does not matter.
    pub fn scratch(self, name: &str, values: impl Into<Values>) -> Self {
        self.buffer(name, Role::Scratch(values.into()))
    }

    fn buffer(mut self, name: &str, role: Role) -> Self {
        self.buffers.push((name.to_string(), role));
        self
    }

    /// The value of an `override` constant (a bool is 0 or 1).
    pub fn constant(mut self, name: &str, value: impl Into<f64>) -> Self {
        self.constants.push((name.to_string(), value.into()));
        self
    }

    /// The number of workgroups in x, y and z.
    pub fn groups<N: TryInto<u32> + Copy + std::fmt::Display>(mut self, groups: [N; 3]) -> Self {
        let one = |n: N| {
            n.try_into().map_err(|_| Error::config("groups", format!("{n} is no number of workgroups")))
        };
        let [x, y, z] = groups;
        self.groups = Some((|| Ok([one(x)?, one(y)?, one(z)?]))());
        self
    }

    /// Runs on this device instead of [`device`](super::device()).
    pub fn on(mut self, gpu: &Gpu) -> Self {
        self.gpu = Some(gpu.clone());
        self
    }

    /// The order in which invocations run may show in the results, as with a list that they append to: the bits may differ
    /// from run to run, and each run is compared with the reference instead.
    pub fn any_order(mut self) -> Self {
        self.any_order = true;
        self
    }

    /// The kernel relies on workgroup memory being zero when it begins, as WGSL promises.
    /// [`Check::WorkgroupMemory`](super::Check) is left out then.
    pub fn zeroed_workgroup_memory(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// Lets the text's `printf` statements print: the messages are in the report. Without this they are taken out of the
    /// text before it is compiled, so they cost nothing; so they are in every run whose results are compared.
    ///
    /// A statement is `printf("row %u: sum %f", row, sum);` with a literal format, anywhere in a function. There are `%u`
    /// (u32), `%i` (i32), `%f` (f32), `%x` (u32 in base 16), `%b` (bool) and `%%`. An argument is evaluated only where it is
    /// printed. There is room for some ten thousand messages; the report says how many had none.
    pub fn printing(mut self) -> Self {
        self.printing = true;
        self
    }

    /// What an output (or `in_out`) should hold: one number, or pair for [`Tolerance::sum`], for each of its own, in their
    /// order.
    pub fn expect<R>(
        self,
        output: &str,
        reference: impl FnOnce(&Given) -> R + 'a,
        tolerance: Tolerance,
    ) -> Self
    where
        R: IntoIterator,
        R::Item: Into<Expected>,
    {
        self.expect_of(Some(output.to_string()), reference, tolerance)
    }

    fn expect_of<R>(
        mut self,
        output: Option<String>,
        reference: impl FnOnce(&Given) -> R + 'a,
        tolerance: Tolerance,
    ) -> Self
    where
        R: IntoIterator,
        R::Item: Into<Expected>,
    {
        let collect =
            move |given: &Given, most| reference(given).into_iter().take(most).map(Into::into).collect();
        self.expected.push((output, Box::new(collect), tolerance));
        self
    }

    /// [`expect`](KernelTest::expect) for the only output, and [`run`](KernelTest::run).
    ///
    /// # Errors
    /// Those of `run`; and when there is not exactly one output.
    pub fn check<R>(
        self,
        reference: impl FnOnce(&Given) -> R + 'a,
        tolerance: Tolerance,
    ) -> Result<Report, Failure>
    where
        R: IntoIterator,
        R::Item: Into<Expected>,
    {
        self.expect_of(None, reference, tolerance).run()
    }

    /// Runs the kernel, several times over, and looks at everything in [`Check`](super::Check).
    ///
    /// # Errors
    /// [`Failure::Wrong`] when anything is wrong with the kernel, [`Failure::Setup`] when the test could not run: the text
    /// does not compile (with naga's report), has no such entry point, variable or constant, or other ones without a
    /// value; there are more workgroups than the device allows; or the device fails.
    pub fn run(mut self) -> Result<Report, Failure> {
        let printf = Printf::parse(&self.source)?;
        let shader = Shader::new(&printf.silent, &self.entry)?;
        let groups = self.groups.take().ok_or_else(|| {
            Error::config("groups", "not given: say .groups([x, y, z]), the workgroups to run")
        })??;
        let constants = constants(&shader, &self.constants)?;
        let mut slots = self.slots(&shader)?;
        self.expectations(&mut slots)?;
        let gpu = match self.gpu.take() {
            Some(gpu) => gpu,
            None => device()?,
        };
        let most = gpu.profile().max_groups;
        if let Some(&needed) = groups.iter().find(|&&n| n > most) {
            return Err(Failure::Setup(Error::Limit {
                limit: "max_compute_workgroups_per_dimension",
                needed: needed.into(),
                allowed: most.into(),
                tensor: format!("kernel `{}`", self.entry),
            }));
        }
        let run = Run {
            entry: &self.entry,
            printf: &printf,
            shader: &shader,
            gpu: &gpu,
            groups,
            constants: constants.iter().map(|(name, value)| (name.as_str(), *value)).collect(),
            any_order: self.any_order,
            zeroed: self.zeroed,
            printing: self.printing,
            report: Report::new(&self.entry, &gpu.description()),
            slots,
        };
        let report = run.all()?;
        if report.faults.is_empty() { Ok(report) } else { Err(Failure::Wrong(Box::new(report))) }
    }

    /// The buffers with what belongs to each: its place, and its bytes.
    fn slots(&self, shader: &Shader) -> Result<Vec<Slot>> {
        let variables = shader.variables()?;
        let mut slots: Vec<Slot> = Vec::new();
        for (name, role) in &self.buffers {
            let variable = variables.iter().find(|v| v.name == *name).ok_or_else(|| {
                let there = names(variables.iter().map(|v| &v.name));
                Error::config(name, format!("the text has no buffer of this name; it has: {there}"))
            })?;
            if slots.iter().any(|s| s.name == *name) {
                return Err(Error::config(name, "given twice"));
            }
            slots.push(Slot::new(variable, role)?);
        }
        if let Some(v) = variables.iter().find(|v| v.used && !slots.iter().any(|s| s.name == v.name)) {
            let problem = format!(
                "the kernel uses it ({}), but the test gives nothing: say .input({:?}, ..){}",
                v.declared(),
                v.name,
                if v.at.kind == SoloKind::Write { " or .output(..), .in_out(..), .scratch(..)" } else { "" }
            );
            return Err(Error::config(&v.name, problem));
        }
        Ok(slots)
    }

    /// Asks the references what the slots should hold.
    fn expectations(&mut self, slots: &mut [Slot]) -> Result<()> {
        let references = std::mem::take(&mut self.expected);
        let given = Given { buffers: &self.buffers, unknown: RefCell::default() };
        for (name, reference, tolerance) in references {
            tolerance.check()?;
            let all = names(slots.iter().filter(|s| s.compared).map(|s| &s.name));
            let mut outputs = slots.iter_mut().filter(|s| s.compared);
            let slot = match &name {
                Some(name) => outputs.find(|s| s.name == *name).ok_or_else(|| {
                    Error::config(name, format!("expected, but no output of the test; those are: {all}"))
                })?,
                None => match (outputs.next(), outputs.next()) {
                    (Some(only), None) => only,
                    (None, _) => return Err(nothing_to_compare()),
                    (Some(_), Some(_)) => {
                        let problem = "say .expect(..) for each, then .run()";
                        return Err(Error::config(
                            "check",
                            format!("there are several outputs ({all}): {problem}"),
                        ));
                    }
                },
            };
            let n = slot.kinds.len();
            // One more than there is room for is enough to see that there are too many.
            let expected = reference(&given, n + 1);
            if let Some(unknown) = given.unknown.take() {
                let with = names(self.buffers.iter().filter(|(_, r)| r.values().is_some()).map(|(n, _)| n));
                let problem = "the reference asks for it, but the test gives it no content; it gives";
                return Err(Error::config(unknown, format!("{problem}: {with}")));
            }
            if expected.len() != n {
                let count = if expected.len() > n { "more".into() } else { expected.len().to_string() };
                let problem = format!("it has {n} numbers, but its reference gives {count}");
                return Err(Error::config(&slot.name, problem));
            }
            if slot.expected.is_some() {
                return Err(Error::config(&slot.name, "expected twice"));
            }
            let bounds = expected.iter().zip(&slot.kinds).map(|(e, &kind)| tolerance.bound(*e, kind));
            let values = expected.iter().map(|e| e.value).collect();
            slot.expected = Some((Tensor64::new(slot.shape.clone(), values), bounds.collect()));
        }
        if let Some(slot) = slots.iter().find(|s| s.compared && s.expected.is_none()) {
            let problem = "nothing is expected of it: say .expect(..), or .scratch(..) where its content does not matter";
            return Err(Error::config(&slot.name, problem));
        }
        if slots.iter().any(|s| s.compared) { Ok(()) } else { Err(nothing_to_compare()) }
    }
}

fn nothing_to_compare() -> Error {
    Error::config("check", "there is no output to compare: say .output(..) or .in_out(..)")
}

/// Names in a message.
fn names<'n>(all: impl Iterator<Item = &'n String>) -> String {
    let all: Vec<_> = all.map(String::as_str).collect();
    if all.is_empty() { "none".to_string() } else { all.join(", ") }
}

impl Role {
    pub fn values(&self) -> Option<&Values> {
        match self {
            Role::Input(v) | Role::InOut(v) | Role::Scratch(v) => Some(v),
            Role::Output(_) => None,
        }
    }
}

/// The constants by the names that the device knows them by.
fn constants(shader: &Shader, given: &[(String, f64)]) -> Result<Vec<(String, f64)>> {
    let overrides: Vec<_> = shader.module.overrides.iter().map(|(_, o)| o).collect();
    let find = |(name, value): &(String, f64)| {
        let found = overrides.iter().find(|o| o.name.as_deref() == Some(name)).ok_or_else(|| {
            let all: Vec<_> = overrides.iter().filter_map(|o| o.name.as_deref()).collect();
            let all = if all.is_empty() { "none".to_string() } else { all.join(", ") };
            Error::config(name, format!("the text has no override constant of this name; it has: {all}"))
        })?;
        // One with an `@id` is known by that alone.
        Ok((found.id.map_or_else(|| name.clone(), |id| id.to_string()), *value))
    };
    let known = given.iter().map(find).collect::<Result<Vec<_>>>()?;
    let missing = |o: &&&naga::Override| {
        o.init.is_none() && !given.iter().any(|(name, _)| o.name.as_deref() == Some(name))
    };
    if let Some(name) = overrides.iter().find(missing).and_then(|o| o.name.as_deref()) {
        let problem = format!("the text gives this override constant no value: say .constant({name:?}, ..)");
        return Err(Error::config(name, problem));
    }
    Ok(known)
}
