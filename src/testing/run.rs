//! The runs of a test of a compute shader, and what each of them is looked at for.

use super::instrument::{Shader, instrument};
use super::kernel_test::Role;
use super::layout::{Layout, Variable};
use super::printf::Printf;
use super::report::{Check, Fault, Outcome, Report, mismatch};
use super::text::{code, identifiers};
use super::values::Kind;
use crate::gpu::{
    GUARD_BYTES, Gpu, POISON, Solo, SoloBinding, SoloBuffer, SoloDispatch, SoloKind, Trespass, poison,
};
use crate::verify::{Order, compare_f64, controlled, worst_share};
use crate::{Error, Result, Shape, Tensor64};

/// The most numbers in a buffer: 4 GiB.
const MOST: usize = 1 << 30;

/// What is said of checks on the bits, where a test allows any order.
const ANY_ORDER: &str =
    "any order was said to be right: instead of its bits, each run was compared with the reference";

/// Another word for guard zones: results that differ by it come from there.
const NUMBER: u32 = 12_409_367f32.to_bits();

/// How often the text is run as it is.
const RUNS: usize = 3;

/// A buffer of the test, bound to its variable.
pub(super) struct Slot {
    pub name: String,
    pub at: SoloBinding,
    layout: Layout,
    pub shape: Shape,
    pub kinds: Vec<Kind>,
    bytes: Vec<u8>,
    /// It should hold what a reference says.
    pub compared: bool,
    /// All of it is to be written.
    whole: bool,
    /// Values and bounds.
    pub expected: Option<(Tensor64, Vec<f64>)>,
}

impl Slot {
    pub fn new(variable: &Variable, role: &Role) -> Result<Slot> {
        let Variable { name, at, .. } = variable;
        let wrong = |problem: String| Error::config(name, problem);
        let layout = variable.layout.clone().map_err(wrong)?;
        let write = at.kind == SoloKind::Write;
        if !write && !matches!(role, Role::Input(_)) {
            let problem =
                "the kernel cannot write it: say .input(..), or declare it `var<storage, read_write>`";
            return Err(wrong(format!("{}: {problem}", variable.declared())));
        }
        let shape: Shape = match role {
            Role::Output(shape) => shape.clone(),
            Role::Input(v) | Role::InOut(v) | Role::Scratch(v) => v.0.len().into(),
        };
        let all = shape.dims().iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let numbers = all.filter(|&n| n <= MOST).ok_or_else(|| {
            wrong(format!("{shape} has more numbers than a buffer of a test can have, {MOST}"))
        })?;
        let bytes = match role {
            Role::Output(_) => layout.bytes(numbers).map(poison),
            Role::Input(v) | Role::InOut(v) | Role::Scratch(v) => layout.write(v),
        };
        let bytes = bytes.map_err(wrong)?;
        // An input that the kernel could write is to be as it was.
        let unchanged = match role {
            Role::Input(v) if write => {
                let values = v.0.iter().map(|&(kind, word)| kind.number(word)).collect();
                Some((Tensor64::new(shape.clone(), values), vec![0.0; v.0.len()]))
            }
            _ => None,
        };
        Ok(Slot {
            name: name.clone(),
            at: *at,
            kinds: layout.kinds(numbers),
            layout,
            shape,
            bytes,
            compared: matches!(role, Role::Output(_) | Role::InOut(_)),
            whole: matches!(role, Role::Output(_)),
            expected: unchanged,
        })
    }

    /// How it is called when a byte of it is meant.
    fn outside(&self, t: &Trespass) -> String {
        let count = self.kinds.len();
        let element = match self.layout.number_at(t.byte) {
            Some(i) => format!("element {i} is written, but it has {count}, from 0 to {}", count as i64 - 1),
            None => format!("byte {} is written, but it has {}", t.byte, self.bytes.len()),
        };
        let side = if t.byte < 0 { "before its start" } else { "beyond its end" };
        format!("written {side}: {element}")
    }
}

/// A test on its device.
pub(super) struct Run<'t> {
    pub entry: &'t str,
    pub printf: &'t Printf,
    pub shader: &'t Shader,
    pub gpu: &'t Gpu,
    pub groups: [u32; 3],
    /// By the names that the device knows them by.
    pub constants: Vec<(&'t str, f64)>,
    pub any_order: bool,
    pub zeroed: bool,
    pub printing: bool,
    pub slots: Vec<Slot>,
    pub report: Report,
}

/// What a launch left: by slot, the numbers' bits.
type Results = Vec<Vec<u32>>;

impl Run<'_> {
    /// Runs every check; the report has what they found.
    pub fn all(mut self) -> Result<Report> {
        let solo = self.compile(&self.printf.silent, None)?;
        let plain = vec![SoloDispatch { groups: self.groups, replace: None }];
        let first = self.launch(&solo, &plain, None)?;
        self.compare(&first);
        self.ended(Check::Reference, Outcome::Passed);
        self.ended(Check::Written, Outcome::Passed);
        for _ in 1..RUNS {
            let again = self.launch(&solo, &plain, None)?;
            let why = "another run of the same dispatch gives other bits: two invocations write one place, or one reads \
                       what another writes";
            self.same(Check::Repeated, &first, &again, why);
        }
        let guards = self.guards(&solo, &first)?;
        self.ended(Check::Guards, guards);
        let repeated = if self.any_order { Outcome::Partly(ANY_ORDER.into()) } else { Outcome::Passed };
        self.ended(Check::Repeated, repeated);
        self.orders()?;
        if self.printing && !self.printf.is_empty() {
            self.print()?;
        }
        let Report { outcomes, faults, .. } = &mut self.report;
        for (check, outcome) in outcomes {
            if faults.iter().any(|f| f.check == *check) {
                *outcome = Outcome::Failed;
            }
        }
        Ok(self.report)
    }

    fn bindings(&self, extra: Option<SoloBinding>) -> Vec<SoloBinding> {
        self.slots.iter().map(|s| s.at).chain(extra).collect()
    }

    fn compile(&self, wgsl: &str, extra: Option<SoloBinding>) -> Result<Solo> {
        self.gpu.solo_wgsl(wgsl, self.entry, &self.bindings(extra), &self.constants)
    }

    /// A place in group 0 that the text does not use.
    fn free(&self, kind: SoloKind) -> SoloBinding {
        let variables = &self.shader.module.global_variables;
        let taken = |n: &u32| {
            variables.iter().any(|(_, v)| v.binding.is_some_and(|b| b.group == 0 && b.binding == *n))
        };
        let free = (0..).find(|n| !taken(n));
        SoloBinding { group: 0, binding: free.unwrap_or_default(), kind }
    }

    /// Runs once more with the text that prints. Its results are not looked at.
    fn print(&mut self) -> Result<()> {
        let at = self.free(SoloKind::Write);
        let text = self.printf.loud(self.shader, self.entry, at.binding)?;
        // For naga's report, where an argument has another type than its conversion.
        Shader::new(&text, self.entry)?;
        let solo = self.compile(&text, Some(at))?;
        let mut buffers: Vec<SoloBuffer> =
            self.slots.iter().map(|s| SoloBuffer { at: s.at, bytes: s.bytes.clone() }).collect();
        buffers.push(SoloBuffer { at, bytes: Printf::buffer() });
        solo.run(&mut buffers, &[SoloDispatch { groups: self.groups, replace: None }])?;
        if let Some(buffer) = buffers.last() {
            (self.report.printed, self.report.lost) = self.printf.messages(&buffer.bytes);
        }
        Ok(())
    }

    /// Runs dispatches over fresh buffers. Writes outside are reported right away.
    fn launch(
        &mut self,
        solo: &Solo,
        dispatches: &[SoloDispatch],
        extra: Option<&SoloBuffer>,
    ) -> Result<Results> {
        let mut buffers: Vec<SoloBuffer> =
            self.slots.iter().map(|s| SoloBuffer { at: s.at, bytes: s.bytes.clone() }).collect();
        buffers.extend(extra.cloned());
        let trespasses = solo.run(&mut buffers, dispatches)?;
        for t in &trespasses {
            if let Some(slot) = self.slots.iter().find(|s| s.at == t.at) {
                let fault = Fault { check: Check::Guards, buffer: slot.name.clone(), text: slot.outside(t) };
                self.fault(fault);
            }
        }
        let read = |(slot, buffer): (&Slot, &SoloBuffer)| slot.layout.read(&buffer.bytes, slot.kinds.len());
        Ok(self.slots.iter().zip(&buffers).map(read).collect())
    }

    /// Adds a fault, unless an earlier run had found it in the same place.
    fn fault(&mut self, fault: Fault) {
        let known = |f: &Fault| f.check == fault.check && f.buffer == fault.buffer;
        if !self.report.faults.iter().any(known) {
            self.report.faults.push(fault);
        }
    }

    fn found(&self, check: Check) -> bool {
        self.report.faults.iter().any(|f| f.check == check)
    }

    /// How a check ends, unless there are faults.
    fn ended(&mut self, check: Check, otherwise: Outcome) {
        self.report.outcomes.push((check, otherwise));
    }

    /// Compares results with the references.
    fn compare(&mut self, results: &Results) {
        let mut faults = Vec::new();
        for (slot, words) in self.slots.iter().zip(results) {
            let Some((expected, bounds)) = &slot.expected else { continue };
            let mut got: Vec<f64> = slot.kinds.iter().zip(words).map(|(kind, &w)| kind.number(w)).collect();
            let fault = |check, text| Fault { check, buffer: slot.name.clone(), text };
            let left: Vec<usize> = (0..words.len()).filter(|&i| slot.whole && words[i] == POISON).collect();
            if let Some(first) = left.first() {
                let (n, of) = (left.len(), words.len());
                let hint = "or computed from what was there before; what is to stay belongs in .in_out(..)";
                let text =
                    format!("{n} of {of} elements are left unwritten, the first of them [{first}], {hint}");
                faults.push(fault(Check::Written, text));
            }
            // They have been told; the comparison is about the others.
            left.iter().for_each(|&i| got[i] = expected.data[i]);
            if let Some(m) = compare_f64(expected, &got, bounds) {
                let changed = if slot.compared { "" } else { "an input, but the kernel changed it: " };
                faults.push(fault(Check::Reference, format!("{changed}{}", mismatch(&m, &slot.kinds))));
            }
            let worst = worst_share(expected, &got, bounds);
            if slot.compared {
                match self.report.outputs.iter_mut().find(|(name, ..)| *name == slot.name) {
                    Some((.., known)) => *known = known.max(worst),
                    None => self.report.outputs.push((slot.name.clone(), got.len(), worst)),
                }
            }
        }
        faults.into_iter().for_each(|f| self.fault(f));
    }

    /// Two runs are to have the same bits. Where any order is right, the other one is compared with the references instead.
    fn same(&mut self, check: Check, one: &Results, other: &Results, why: &str) {
        // What differs from run to run says nothing in other checks.
        let unsteady = check != Check::Repeated && self.found(Check::Repeated);
        if self.any_order {
            self.compare(other);
        } else if !unsteady {
            self.differ(check, one, other, why);
        }
    }

    /// Reports where two runs have other bits.
    fn differ(&mut self, check: Check, one: &Results, other: &Results, why: &str) {
        let mut faults = Vec::new();
        for (slot, (a, b)) in self.slots.iter().zip(one.iter().zip(other)) {
            let places: Vec<usize> = (0..a.len()).filter(|&i| a[i] != b[i]).collect();
            let Some(&first) = places.first().filter(|_| slot.expected.is_some()) else { continue };
            let show = |word: u32| match slot.kinds[first] {
                Kind::F32 => format!("{:?}", f32::from_bits(word)),
                kind => kind.number(word).to_string(),
            };
            let text = format!(
                "{why}\n  {} of {} elements differ, the first of them [{first}]: {} and then {}",
                places.len(),
                a.len(),
                show(a[first]),
                show(b[first])
            );
            faults.push(Fault { check, buffer: slot.name.clone(), text });
        }
        faults.into_iter().for_each(|f| self.fault(f));
    }

    /// Runs with other guard zones. Writes beyond the end are seen where the zone behind a buffer is bound with it; a
    /// kernel that asks for the length of an array must not see the zone, so a text that takes it off is run then.
    fn guards(&mut self, solo: &Solo, first: &Results) -> Result<Outcome> {
        let dispatch = [SoloDispatch { groups: self.groups, replace: None }];
        let why = "the result depends on what lies outside of the buffers: the kernel reads there";
        let source = &self.printf.silent;
        let code = code(source);
        if identifiers(&code, "arrayLength").next().is_none() {
            let other = self.launch(&solo.clone().fill_guards(NUMBER), &dispatch, None)?;
            self.same(Check::Guards, first, &other, why);
            return Ok(Outcome::Passed);
        }
        let Some(text) = shortened(source, &code, &self.slots) else {
            let why = "an arrayLength is asked for in a way that is not understood here, so reads and writes beyond the \
                       end of a buffer are not seen: say arrayLength(&name)";
            return Ok(Outcome::Partly(why.into()));
        };
        let solo = self.compile(&text, None)?.bind_guards(true);
        let one = self.launch(&solo, &dispatch, None)?;
        let other = self.launch(&solo.fill_guards(NUMBER), &dispatch, None)?;
        self.same(Check::Guards, &one, &other, why);
        Ok(Outcome::Passed)
    }

    /// The kernel with the block of eight words (see [`crate::verify::Prepared::controlled`]) at `at`, or why there is
    /// none.
    fn instrumented(&self, at: SoloBinding, reorder: bool) -> Result<Solo, String> {
        let storage = self.slots.iter().filter(|s| s.at.kind != SoloKind::Uniform).count();
        let allowed = self.gpu.profile().max_storage_buffers as usize;
        if storage >= allowed {
            return Err(format!(
                "it takes one more storage buffer than the {allowed} that the device allows"
            ));
        }
        // With constants in place of overrides, so that sizes which depend on them are known.
        let settled = settled(&self.printf.silent, self.shader, &self.constants);
        let solo = instrument(&settled, self.entry, at.binding, reorder).and_then(|text| {
            // For naga's reason, should the text have names of the harness.
            Shader::new(&text, self.entry)?;
            let bindings = self.bindings(Some(at));
            self.gpu.solo_wgsl(&text, self.entry, &bindings, &[])
        });
        solo.map_err(|e| e.to_string().lines().next().unwrap_or_default().to_string())
    }

    /// Runs with poison in workgroup memory, and in another order.
    fn orders(&mut self) -> Result<()> {
        let code = code(&self.printf.silent);
        let subgroups = ["subgroup", "quadBroadcast", "quadSwap"].iter().any(|word| code.contains(word));
        let memory = self.shader.uses_workgroup_memory();
        let none = || Outcome::NotNeeded("the kernel uses none".into());
        let at = self.free(SoloKind::Read);
        let solo = match self.instrumented(at, !subgroups) {
            Ok(solo) => solo,
            Err(why) => {
                let left_out = Outcome::LeftOut(why);
                self.ended(Check::WorkgroupMemory, if memory { left_out.clone() } else { none() });
                self.ended(Check::Order, left_out);
                return Ok(());
            }
        };
        let block = SoloBuffer { at, bytes: vec![0; 32] };
        let number = self.slots.len();
        let run = |run: &mut Self, order, fill| {
            let dispatches = controlled(run.groups, order, fill, number);
            run.launch(&solo, &dispatches, Some(&block))
        };
        // One text for all three: the bits of two may differ by right, as a compiler joins operations.
        let straight = run(self, Order::Natural, 0)?;
        self.compare(&straight);

        let reversed = run(self, Order::Reversed, 0)?;
        let cause = match memory {
            true => "a workgroupBarrier is missing, or two invocations write one place",
            false => "two invocations write one place, or one reads what another writes",
        };
        let why = format!("the result depends on the order in which invocations run: {cause}");
        self.same(Check::Order, &straight, &reversed, &why);

        if memory && !self.zeroed {
            let poisoned = run(self, Order::Natural, POISON)?;
            let or = "or it is taken to be zero (then say .zeroed_workgroup_memory())";
            let or = if self.found(Check::Order) { String::new() } else { format!(", {or}") };
            let why =
                format!("workgroup memory is read before it is written: a workgroupBarrier is missing{or}");
            self.same(Check::WorkgroupMemory, &straight, &poisoned, &why);
        }
        let any_order = || Outcome::Partly(ANY_ORDER.into());
        let poisoned = match memory {
            false => none(),
            true if self.zeroed => Outcome::LeftOut("the test says that the kernel relies on zeros".into()),
            true if self.any_order => any_order(),
            true => Outcome::Passed,
        };
        self.ended(Check::WorkgroupMemory, poisoned);
        let kept = "the kernel works with sub-groups, so the invocations of a workgroup keep their order";
        let ordered = match subgroups {
            _ if self.any_order => any_order(),
            true => Outcome::Partly(kept.into()),
            false => Outcome::Passed,
        };
        self.ended(Check::Order, ordered);
        Ok(())
    }
}

/// The text with the guard zone taken off each `arrayLength(&name)`; `None` where one is written otherwise.
fn shortened(source: &str, code: &str, slots: &[Slot]) -> Option<String> {
    let mut out = String::new();
    let mut from = 0;
    for at in identifiers(code, "arrayLength") {
        let rest = code[at + "arrayLength".len()..].trim_start().strip_prefix('(')?;
        let (argument, after) = rest.split_once(')')?;
        let place = argument.trim().strip_prefix('&')?;
        let name = place.split('.').next()?.trim();
        let slot = slots.iter().find(|s| s.name == name)?;
        let longer = slot.layout.longer(slot.bytes.len(), GUARD_BYTES)?;
        let end = code.len() - after.len();
        out.push_str(&source[from..at]);
        out.push_str(&format!("({} - {longer}u)", &source[at..end]));
        from = end;
    }
    out.push_str(&source[from..]);
    Some(out)
}

/// The text with `const` in place of `override`, and the values given. What is written in another way stays as it is.
fn settled(source: &str, shader: &Shader, constants: &[(&str, f64)]) -> String {
    let code = code(source);
    let mut out = String::new();
    let mut from = 0;
    for at in identifiers(&code, "override") {
        let declaration = code[at..].split(';').next().unwrap_or_default();
        let rest = declaration["override".len()..].trim_start();
        let is = |name: &str| rest.strip_prefix(name).is_some_and(|r| r.trim_start().starts_with([':', '=']));
        let found = shader.module.overrides.iter().find(|(_, o)| o.name.as_deref().is_some_and(is));
        let Some((_, o)) = found else { continue };
        // An `@id` stands before it, and means nothing to a constant.
        let before = code[..at].trim_end();
        let id = o.id.and_then(|_| before.rfind('@'));
        out.push_str(&source[from..id.unwrap_or(at)]);
        let name = o.name.clone().unwrap_or_default();
        let key = o.id.map_or_else(|| name.clone(), |id| id.to_string());
        match constants.iter().find(|(k, _)| *k == key) {
            Some((_, value)) => out.push_str(&format!("const {name} = {}", literal(shader, o, *value))),
            None => out.push_str(&format!("const{}", &source[at + "override".len()..at + declaration.len()])),
        }
        from = at + declaration.len();
    }
    out.push_str(&source[from..]);
    out
}

/// A value of an override's type.
fn literal(shader: &Shader, o: &naga::Override, value: f64) -> String {
    match shader.module.types[o.ty].inner.scalar_kind() {
        Some(naga::ScalarKind::Bool) => (value != 0.0).to_string(),
        Some(naga::ScalarKind::Uint) => format!("u32({value})"),
        Some(naga::ScalarKind::Sint) => format!("i32({value})"),
        _ => format!("f32({value:?})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_turn_into_constants() {
        let text = "
override WIDTH: u32 = 2u * HALF; // override it
@id(7) override HALF: u32;
@id( 9 )
override SCALE = 1.5;
override ON: bool = true;
var<workgroup> cells: array<f32, WIDTH>;
@compute @workgroup_size(WIDTH)
fn main() { if ON { cells[0] = SCALE; } }
";
        let shader = Shader::new(text, "main").unwrap();
        let text = settled(text, &shader, &[("7", 16.0), ("ON", 0.0)]);
        let begin = "
const WIDTH: u32 = 2u * HALF; // override it
const HALF = u32(16);
const SCALE = 1.5;
const ON = false;
";
        assert!(text.starts_with(begin), "{text}");
        let shader = Shader::new(&text, "main").unwrap();
        assert_eq!(shader.module.entry_points[0].workgroup_size, [32, 1, 1]);
        instrument(&text, "main", 0, true).unwrap();
    }
}
