//! Changes the text of a kernel for a test: workgroup memory is poisoned before the kernel begins, and the caller chooses
//! where the grid starts and whether its invocations and workgroups come in the opposite order.
//!
//! Only the entry point's parameter list is replaced and lines put in front of its body, so that its own names keep their
//! meaning, and line numbers in the body move by a constant. What is read of the text (workgroup variables and their
//! types, the built-in values that the entry takes) comes from naga.

use super::text::parameter_list;
use crate::{Error, Result};
use naga::{AddressSpace, ArraySize, BuiltIn, Handle, Module, ScalarKind, Type, TypeInner};
use std::fmt::Write;

/// What a kernel's text can be asked for.
#[derive(Debug)]
pub struct Shader {
    pub(super) module: Module,
    pub(super) info: naga::valid::ModuleInfo,
    pub(super) entry: usize,
}

impl Shader {
    /// Parses and validates a text.
    ///
    /// # Errors
    /// When the text is wrong, with naga's report, or has no such compute entry point.
    pub fn new(wgsl: &str, entry: &str) -> Result<Shader> {
        let wrong = |problem: String| Error::config(format!("shader entry {entry:?}"), problem);
        let module = naga::front::wgsl::parse_str(wgsl).map_err(|e| wrong(e.emit_to_string(wgsl)))?;
        let mut validator = naga::valid::Validator::new(
            naga::valid::ValidationFlags::all(),
            naga::valid::Capabilities::all(),
        );
        let info = validator.validate(&module).map_err(|e| wrong(e.emit_to_string(wgsl)))?;
        let found = |e: &naga::EntryPoint| e.name == entry && e.stage == naga::ShaderStage::Compute;
        let Some(index) = module.entry_points.iter().position(found) else {
            let names: Vec<_> = module.entry_points.iter().map(|e| e.name.as_str()).collect();
            return Err(wrong(format!("there is none of this name; there are: {}", names.join(", "))));
        };
        Ok(Shader { module, info, entry: index })
    }

    /// The workgroup variables that the entry uses: name and type.
    fn workgroup_variables(&self) -> Vec<(&str, Handle<Type>)> {
        let uses = self.info.get_entry_point(self.entry);
        self.module
            .global_variables
            .iter()
            .filter(|(handle, v)| v.space == AddressSpace::WorkGroup && !uses[*handle].is_empty())
            .filter_map(|(_, v)| Some((v.name.as_deref()?, v.ty)))
            .collect()
    }

    /// Whether the entry uses workgroup memory.
    pub fn uses_workgroup_memory(&self) -> bool {
        !self.workgroup_variables().is_empty()
    }

    /// Statements that store poison in every part of a place of this type.
    fn poison(&self, place: &str, ty: Handle<Type>, depth: usize, out: &mut String) -> Option<()> {
        let scalar = |kind: ScalarKind| match kind {
            ScalarKind::Float => Some("bitcast<f32>(wgf_block[0])"),
            ScalarKind::Uint => Some("wgf_block[0]"),
            ScalarKind::Sint => Some("bitcast<i32>(wgf_block[0])"),
            ScalarKind::Bool => Some("(wgf_block[0] != 0u)"),
            _ => None,
        };
        match &self.module.types[ty].inner {
            TypeInner::Scalar(s) if s.width <= 4 => {
                let value = scalar(s.kind)?;
                match (s.kind, s.width) {
                    (ScalarKind::Float, 2) => writeln!(out, "{place} = f16({value});").ok()?,
                    _ => writeln!(out, "{place} = {value};").ok()?,
                }
            }
            TypeInner::Vector { size, scalar: s } => {
                for c in ["x", "y", "z", "w"].into_iter().take(*size as usize) {
                    let value = scalar(s.kind)?;
                    let value = if s.width == 2 { format!("f16({value})") } else { value.to_string() };
                    writeln!(out, "{place}.{c} = {value};").ok()?;
                }
            }
            TypeInner::Matrix { columns, rows, scalar: s } => {
                let value = scalar(s.kind)?;
                let value = if s.width == 2 { format!("f16({value})") } else { value.to_string() };
                for column in 0..*columns as usize {
                    for row in 0..*rows as usize {
                        writeln!(out, "{place}[{column}][{row}] = {value};").ok()?;
                    }
                }
            }
            TypeInner::Atomic(s) => writeln!(out, "atomicStore(&{place}, {});", scalar(s.kind)?).ok()?,
            TypeInner::Array { base, size, .. } => {
                let ArraySize::Constant(n) = size else { return None };
                let i = format!("wgf_i{depth}");
                // The outermost array is shared out among the invocations.
                let (from, step) = if depth == 0 { ("wgf_at", "WGF_SIZE") } else { ("0u", "1u") };
                writeln!(out, "for (var {i} = {from}; {i} < {n}u; {i} += {step}) {{").ok()?;
                self.poison(&format!("{place}[{i}]"), *base, depth + 1, out)?;
                writeln!(out, "}}").ok()?;
            }
            TypeInner::Struct { members, .. } => {
                for m in members {
                    self.poison(&format!("{place}.{}", m.name.as_deref()?), m.ty, depth + 1, out)?;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

/// A kernel's text with the block of eight words (see [`Prepared::controlled`](crate::verify::Prepared::controlled)) at
/// group 0 and `binding`. `reorder` is whether the entry's result may not depend on which invocation is which: not so
/// where it works with sub-groups, whose members the device chooses.
///
/// # Errors
/// When the text is wrong, or its entry point is written in a way that cannot be changed: then the message says what.
pub fn instrument(wgsl: &str, entry: &str, binding: u32, reorder: bool) -> Result<String> {
    let shader = Shader::new(wgsl, entry)?;
    let wrong = |problem: &str| Error::config(format!("shader entry {entry:?}"), problem);
    let point = &shader.module.entry_points[shader.entry];
    if point.workgroup_size_overrides.is_some() {
        return Err(wrong(
            "its workgroup size is an override constant: write a const to have it instrumented",
        ));
    }
    let [sx, sy, sz] = point.workgroup_size;

    let mut head = String::new();
    let built = |b: BuiltIn| match b {
        BuiltIn::WorkGroupId => Some("wgf_group"),
        BuiltIn::NumWorkGroups => Some("wgf_groups"),
        BuiltIn::LocalInvocationIndex => Some("wgf_index"),
        BuiltIn::LocalInvocationId => Some("wgf_local"),
        BuiltIn::GlobalInvocationId => Some("wgf_global"),
        BuiltIn::SubgroupInvocationId => Some("wgf_lane"),
        BuiltIn::SubgroupSize => Some("wgf_subgroup_size"),
        BuiltIn::SubgroupId => Some("wgf_subgroup"),
        BuiltIn::NumSubgroups => Some("wgf_subgroups"),
        _ => None,
    };
    let mut taken: Vec<BuiltIn> = Vec::new();
    let mut value = |binding: &Option<naga::Binding>| match binding {
        Some(naga::Binding::BuiltIn(b)) => {
            taken.push(*b);
            built(*b).ok_or_else(|| wrong("it takes a built-in value that is not known here"))
        }
        _ => Err(wrong("it takes a parameter that is no built-in value")),
    };
    for argument in &point.function.arguments {
        let name = argument.name.as_deref().ok_or_else(|| wrong("a parameter has no name"))?;
        match (&argument.binding, &shader.module.types[argument.ty]) {
            (None, Type { name: Some(ty), inner: TypeInner::Struct { members, .. } }) => {
                let values = members.iter().map(|m| value(&m.binding)).collect::<Result<Vec<_>>>()?;
                let _ = writeln!(head, "let {name} = {ty}({});", values.join(", "));
            }
            (binding, _) => {
                let value = value(binding)?;
                let _ = writeln!(head, "let {name} = {value};");
            }
        }
    }

    let mut poison = String::new();
    for (name, ty) in shader.workgroup_variables() {
        let mut one = String::new();
        let scalar = !matches!(shader.module.types[ty].inner, TypeInner::Array { .. });
        shader
            .poison(name, ty, if scalar { 1 } else { 0 }, &mut one)
            .ok_or_else(|| wrong(&format!("the type of {name} cannot be poisoned")))?;
        if scalar {
            let _ = writeln!(poison, "if wgf_at == 0u {{\n{one}}}");
        } else {
            poison.push_str(&one);
        }
    }
    if !poison.is_empty() {
        poison.push_str("workgroupBarrier();\n");
    }

    let mut parameters = String::from(
        "@builtin(workgroup_id) wgf_raw_group: vec3<u32>, @builtin(local_invocation_index) wgf_at: u32",
    );
    for (b, text) in [
        (BuiltIn::SubgroupInvocationId, "@builtin(subgroup_invocation_id) wgf_lane: u32"),
        (BuiltIn::SubgroupSize, "@builtin(subgroup_size) wgf_subgroup_size: u32"),
        (BuiltIn::SubgroupId, "@builtin(subgroup_id) wgf_subgroup: u32"),
        (BuiltIn::NumSubgroups, "@builtin(num_subgroups) wgf_subgroups: u32"),
    ] {
        if taken.contains(&b) {
            let _ = write!(parameters, ", {text}");
        }
    }

    let index = if reorder { "select(wgf_at, WGF_SIZE - 1u - wgf_at, wgf_block[1] != 0u)" } else { "wgf_at" };
    let lines = format!(
        "{poison}\
         let wgf_groups = vec3<u32>(wgf_block[5], wgf_block[6], wgf_block[7]);\n\
         let wgf_straight = wgf_raw_group + vec3<u32>(wgf_block[2], wgf_block[3], wgf_block[4]);\n\
         let wgf_group = select(wgf_straight, wgf_groups - 1u - wgf_straight, wgf_block[1] != 0u);\n\
         let wgf_index = {index};\n\
         let wgf_local = vec3<u32>(wgf_index % {sx}u, wgf_index / {sx}u % {sy}u, wgf_index / {}u);\n\
         let wgf_global = wgf_group * vec3<u32>({sx}u, {sy}u, {sz}u) + wgf_local;\n\
         {head}",
        sx * sy
    );
    let (open, close) =
        parameter_list(wgsl, entry).ok_or_else(|| wrong("its parameter list was not found"))?;
    let body = wgsl[close..].find('{').map(|i| close + i + 1).ok_or_else(|| wrong("it has no body"))?;
    Ok(format!(
        "{}({parameters}{}\n{lines}{}\n\
         @group(0) @binding({binding}) var<storage, read> wgf_block: array<u32, 8>;\n\
         const WGF_SIZE = {}u;\n",
        &wgsl[..open],
        &wgsl[close - 1..body],
        &wgsl[body..],
        sx * sy * sz,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
const N = 8u; // fn main(
var<workgroup> cells: array<vec2<f32>, N>;
var<workgroup> total: atomic<u32>;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(N, 2)
fn main(@builtin(global_invocation_id) id: vec3<u32>, /* ( */ @builtin(local_invocation_index) i: u32) {
    cells[i % N].x = 1.0;
    atomicAdd(&total, 1u);
    workgroupBarrier();
    y[id.x] = cells[7u - i % N].x;
}
@compute @workgroup_size(1)
fn plain() { y[0] = 1.0; }
";

    #[test]
    fn the_changed_text_is_valid_and_keeps_the_rest() {
        let text = instrument(TEXT, "main", 1, true).unwrap();
        let shader = Shader::new(&text, "main").unwrap();
        assert!(shader.uses_workgroup_memory());
        assert!(text.contains("cells[wgf_i0].x = bitcast<f32>(wgf_block[0]);"), "{text}");
        assert!(text.contains("atomicStore(&total, wgf_block[0]);"), "{text}");
        assert!(text.contains("fn plain() { y[0] = 1.0; }"), "{text}");
        assert!(!Shader::new(TEXT, "plain").unwrap().uses_workgroup_memory());
        assert!(Shader::new(TEXT, "none").is_err());
    }
}
