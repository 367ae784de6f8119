//! One kernel: its text against what the host says of it.

use super::collect::Profile;
use super::{extends, first, translate};
use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, GlobalVariable, Handle, Module, StorageAccess, TypeInner};
use wgformer::kernel::{Access, Kernel};
use wgformer::ops::Family;
use wgformer::plan::ALIGN_BYTES;

/// WebGPU's default limits (https://www.w3.org/TR/webgpu/#limits).
mod webgpu {
    pub const STORAGE_BUFFERS: u32 = 8;
    pub const INVOCATIONS: u32 = 256;
    pub const WORKGROUP_SIZE: [u32; 3] = [256, 256, 64];
    pub const WORKGROUP_BYTES: u32 = 16384;
}

/// What a device without any feature can do.
const NOTHING: Capabilities = Capabilities::empty();

/// A kernel's text, parsed and validated.
pub struct Text {
    pub module: Module,
    pub info: ModuleInfo,
    /// Of the entry point.
    pub entry: usize,
}

impl Text {
    /// Parses and validates with no more than the kernel says that it requires.
    pub fn new(kernel: &Kernel) -> Result<Text, String> {
        let text = kernel.wgsl();
        let module = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text))?;
        let validate = |capabilities: Capabilities| {
            let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
            info.map_err(|e| e.emit_to_string(&text))
        };
        let (subgroups, f16) = (kernel.requires.subgroup_size.is_some(), kernel.requires.f16);
        let of = |given: bool, capability| if given { capability } else { NOTHING };
        let (of_groups, of_f16) =
            (of(subgroups, Capabilities::SUBGROUP), of(f16, Capabilities::SHADER_FLOAT16));
        let info = validate(of_groups | of_f16)?;
        if subgroups && validate(of_f16).is_ok() {
            return Err("requires sub-groups, but has no operation of theirs".to_string());
        }
        if f16 && validate(of_groups).is_ok() {
            return Err("requires 16-bit floats, but has none".to_string());
        }
        let Some(entry) = module.entry_points.iter().position(|e| e.name == kernel.entry) else {
            return Err(format!("there is no entry point {:?}", kernel.entry));
        };
        Ok(Text { module, info, entry })
    }

    fn entry(&self) -> &naga::EntryPoint {
        &self.module.entry_points[self.entry]
    }

    /// The global variables that the entry point reaches, in any branch.
    fn used(&self) -> Vec<(Handle<GlobalVariable>, &GlobalVariable, GlobalUse)> {
        let info = self.info.get_entry_point(self.entry);
        let all = self.module.global_variables.iter().map(|(handle, v)| (handle, v, info[handle]));
        all.filter(|(_, _, used)| !used.is_empty()).collect()
    }

    /// Bytes of workgroup memory, as WebGPU counts them: each variable in units of 16.
    fn workgroup_bytes(&self) -> u32 {
        let of_workgroup = self.used().into_iter().filter(|(_, v, _)| v.space == AddressSpace::WorkGroup);
        let size = |v: &GlobalVariable| self.module.types[v.ty].inner.size(self.module.to_ctx());
        of_workgroup.map(|(_, v, _)| size(v).next_multiple_of(16)).sum()
    }

    /// Whether an entry point asks the device for its sub-group size, by a parameter or in a struct of them.
    fn reads_subgroup_size(&self) -> bool {
        let arguments = &self.entry().function.arguments;
        let size = Some(naga::Binding::BuiltIn(naga::BuiltIn::SubgroupSize));
        arguments.iter().any(|a| match &self.module.types[a.ty].inner {
            naga::TypeInner::Struct { members, .. } => members.iter().any(|m| m.binding == size),
            _ => a.binding == size,
        })
    }
}

/// What is wrong with a kernel that was lowered for these devices.
pub fn check(kernel: &Kernel, profiles: &[Profile], families: &[Family]) -> Vec<String> {
    let mut problems = registered(kernel, families);
    match Text::new(kernel) {
        Ok(text) => {
            problems.extend(bindings(kernel, &text));
            problems.extend(params(kernel, &text));
            problems.extend(limits(kernel, &text, profiles));
            problems.extend(translate::problems(kernel, &text));
        }
        Err(problem) => problems.push(problem),
    }
    problems
}

/// The first text is a family's file, one of the texts is the family's that lists the entry, and the name is a family's.
fn registered(kernel: &Kernel, families: &[Family]) -> Vec<String> {
    let mut problems = Vec::new();
    let of_text = |text: &str| families.iter().find(|f| f.source == text);
    let name = first(&kernel.name);
    let texts: Vec<&Family> = kernel.parts.iter().filter_map(|text| of_text(text)).collect();
    if kernel.parts.first().is_none_or(|text| of_text(text).is_none()) {
        problems.push("the first text is no family's file".to_string());
    }
    if let Some(other) = texts.iter().find(|f| f.name != name && !extends(f.name, name)) {
        problems.push(format!("it is named {name:?}, but has the text of {:?}", other.name));
    }
    if !families.iter().any(|f| f.name == name) {
        problems.push(format!("the name {:?} begins with no family", kernel.name));
    }
    let lists = texts.iter().filter(|f| f.entries.contains(&kernel.entry)).count();
    if lists != 1 {
        problems.push(format!("{lists} of its families list the entry point {:?}, expected 1", kernel.entry));
    }
    problems
}

/// Group 0 has the storage bindings that the host lists, with the same access, and all of them are used.
///
/// Entry points of a file share its declarations, so one that needs few of them may leave some unused between others: the
/// host then binds a stand-in for reading. What is written, and the last binding, must be used.
fn bindings(kernel: &Kernel, text: &Text) -> Vec<String> {
    let mut problems = Vec::new();
    let mut found = vec![false; kernel.bindings.len()];
    for (_, v, used) in text.used() {
        let name = v.name.as_deref().unwrap_or("?");
        let AddressSpace::Storage { access } = v.space else { continue };
        let at = v.binding.filter(|b| b.group == 0).map_or(usize::MAX, |b| b.binding as usize);
        let Some(&listed) = kernel.bindings.get(at) else {
            problems.push(format!("{name} is no binding below {} of group 0", kernel.bindings.len()));
            continue;
        };
        found[at] = true;
        if !matches!(text.module.types[v.ty].inner, TypeInner::Array { size: naga::ArraySize::Dynamic, .. }) {
            problems.push(format!("{name} is no array of any length"));
        }
        match (listed, access == StorageAccess::LOAD, used.contains(GlobalUse::WRITE)) {
            (Access::Read, true, _) | (Access::Write | Access::Update, false, true) => (),
            (Access::Read, false, _) => problems.push(format!("{name} is read_write, but listed as read")),
            (_, true, _) => problems.push(format!("{name} is read, but listed as {listed:?}")),
            (_, false, false) => {
                problems.push(format!("{name} is listed as {listed:?}, but never stored to"))
            }
        }
    }
    for (at, access) in kernel.bindings.iter().enumerate().filter(|(at, _)| !found[*at]) {
        if *access != Access::Read || !found[at..].contains(&true) {
            problems
                .push(format!("binding {at} is listed as {access:?}, but the entry point does not use it"));
        }
    }
    problems
}

/// Group 1 has the parameter block at binding 0, with the same fields as the host's, and nothing else is bound.
fn params(kernel: &Kernel, text: &Text) -> Vec<String> {
    let mut problems = Vec::new();
    let mut block = None;
    for (_, v, _) in text.used() {
        let name = v.name.as_deref().unwrap_or("?");
        match v.space {
            AddressSpace::Storage { .. } | AddressSpace::WorkGroup | AddressSpace::Private => (),
            AddressSpace::Uniform if v.binding == Some(naga::ResourceBinding { group: 1, binding: 0 }) => {
                block = Some(v);
            }
            _ => problems.push(format!("{name} is neither a storage buffer nor the parameter block")),
        }
    }
    let ours: Vec<String> =
        kernel.params.iter().map(|f| format!("{}: {} at {}", f.name, f.ty, f.offset)).collect();
    let Some(block) = block else {
        if !ours.is_empty() {
            problems.push("the host gives parameters, but the entry point uses none".to_string());
        }
        return problems;
    };
    let types = &text.module.types;
    let TypeInner::Struct { members, span } = &types[block.ty].inner else {
        problems.push("the parameter block is no struct".to_string());
        return problems;
    };
    if u64::from(*span) > ALIGN_BYTES {
        problems.push(format!("the parameter block has {span} bytes; at most {ALIGN_BYTES} are bound"));
    }
    let theirs: Vec<String> = members
        .iter()
        .map(|m| {
            let ty = match types[m.ty].inner {
                TypeInner::Scalar(naga::Scalar::U32) => "u32",
                TypeInner::Scalar(naga::Scalar::I32) => "i32",
                TypeInner::Scalar(naga::Scalar::F32) => "f32",
                _ => "another type",
            };
            format!("{}: {ty} at {}", m.name.as_deref().unwrap_or("?"), m.offset)
        })
        .collect();
    for i in 0..ours.len().max(theirs.len()) {
        let none = "nothing".to_string();
        let (ours, theirs) = (ours.get(i).unwrap_or(&none), theirs.get(i).unwrap_or(&none));
        if ours != theirs {
            problems.push(format!("field {i} of the parameters is {ours} in Rust, but {theirs} in WGSL"));
        }
    }
    problems
}

/// What `requires` says is so, and it is within the limits of the devices that the kernel was lowered for; for those
/// with WebGPU's defaults, within these as the standard has them.
fn limits(kernel: &Kernel, text: &Text, profiles: &[Profile]) -> Vec<String> {
    let mut problems = Vec::new();
    let requires = &kernel.requires;
    let size = text.entry().workgroup_size;
    let invocations: u32 = size.iter().product();
    let bytes = text.workgroup_bytes();
    if invocations != requires.invocations {
        problems.push(format!(
            "has {invocations} invocations a workgroup, but requires {}",
            requires.invocations
        ));
    }
    if bytes != requires.workgroup_bytes {
        problems.push(format!(
            "has {bytes} bytes of workgroup memory, but requires {}",
            requires.workgroup_bytes
        ));
    }
    // A device may run with another size than it has told: the shader must ask.
    if requires.subgroup_size.is_some() && !text.reads_subgroup_size() {
        problems.push(format!(
            "requires sub-groups of {:?}, but does not read their size",
            requires.subgroup_size
        ));
    }
    for (name, p) in profiles {
        let default = p.max_invocations == webgpu::INVOCATIONS
            && p.max_workgroup_bytes == webgpu::WORKGROUP_BYTES
            && p.max_storage_buffers == webgpu::STORAGE_BUFFERS;
        let mut within = |what: &str, needed: u32, allowed: u32| {
            if needed > allowed {
                problems.push(format!("has {needed} {what}, but {name} allows {allowed}"));
            }
        };
        within("invocations a workgroup", requires.invocations, p.max_invocations);
        within("bytes of workgroup memory", requires.workgroup_bytes, p.max_workgroup_bytes);
        within("storage buffers", kernel.bindings.len() as u32, p.max_storage_buffers);
        if default {
            for (axis, size) in size.iter().enumerate() {
                within("invocations along one axis", *size, webgpu::WORKGROUP_SIZE[axis]);
            }
            within("invocations a workgroup", invocations, webgpu::INVOCATIONS);
            within("bytes of workgroup memory", bytes, webgpu::WORKGROUP_BYTES);
        }
        if requires.subgroup_size.is_some() && requires.subgroup_size != p.subgroup_size() {
            problems
                .push(format!("requires sub-groups of {:?}, which {name} has not", requires.subgroup_size));
        }
    }
    problems
}
