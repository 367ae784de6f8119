//! Small wrong examples: each check of this layer must see its own.

use super::Outcome;
use super::collect::Found;
use super::files::{self, File};
use super::kernel::{self, Text};
use super::translate;
use wgformer::DeviceProfile;
use wgformer::kernel::{Access, Const, Field, Kernel, Requires};
use wgformer::ops::Family;

/// A kernel with all that is checked, and nothing wrong.
const RIGHT: &str = "
struct Params {
    count: u32,
    factor: f32,
}

@group(1) @binding(0) var<uniform> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> spare: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> cells: array<f32, GROUP>;

@compute @workgroup_size(GROUP)
fn forward(@builtin(local_invocation_index) lane: u32) {
    cells[lane] = x[lane] * params.factor;
    workgroupBarrier();
    if lane < params.count {
        y[lane] = cells[lane ^ 1u];
    }
}
";

const FIELDS: [Field; 2] =
    [Field { name: "count", ty: "u32", offset: 0 }, Field { name: "factor", ty: "f32", offset: 4 }];

fn right() -> Kernel {
    Kernel {
        name: "sum/workgroup".into(),
        parts: vec![RIGHT.into()],
        entry: "forward",
        bindings: vec![Access::Read, Access::Read, Access::Write],
        params: &FIELDS,
        constants: vec![("GROUP", Const::U32(64))],
        requires: Requires { workgroup_bytes: 256, invocations: 64, ..Default::default() },
    }
}

/// What is done to the right kernel, and what the problem says then.
type Wrong = (fn(&mut Kernel), &'static str);

/// Replaces a part of the text.
fn edit(kernel: &mut Kernel, from: &str, to: &str) {
    let text = kernel.parts[0].replace(from, to);
    assert_ne!(text, *kernel.parts[0], "{from:?} is not in the text");
    kernel.parts[0] = text.into();
}

const KERNELS: &[Wrong] = &[
    // The text.
    (|k| edit(k, "lane < ", "lane < < "), "expected expression"),
    (|k| edit(k, "cells[lane ^ 1u]", "1u"), "a value with elements of type f32 is required here"),
    (|k| edit(k, "y[lane] = ", "x[lane] = "), "store"),
    (|k| edit(k, "= x[lane]", "= subgroupAdd(x[lane])"), "SUBGROUP"),
    (|k| edit(k, "= x[lane]", "= f32(f16(x[lane]))"), "f16"),
    (|k| k.requires.subgroup_size = Some(64), "no operation of theirs"),
    (|k| k.requires.f16 = true, "requires 16-bit floats, but has none"),
    // Names.
    (|k| k.name = "total/workgroup".into(), "begins with no family"),
    (|k| k.name = "other".into(), "named \"other\", but has the text of \"sum\""),
    (|k| k.parts.insert(0, "const A = 1;".into()), "the first text is no family's file"),
    (|k| k.entry = "backward", "there is no entry point \"backward\""),
    (|k| k.entry = "backward", "0 of its families list the entry point \"backward\""),
    // Bindings.
    (|k| k.bindings[0] = Access::Write, "x is read, but listed as Write"),
    (|k| k.bindings[0] = Access::Update, "x is read, but listed as Update"),
    (|k| k.bindings[2] = Access::Read, "y is read_write, but listed as read"),
    (|k| edit(k, "y[lane] = cells[lane ^ 1u];", "_ = y[lane];"), "y is listed as Write, but never stored to"),
    (|k| k.bindings.truncate(2), "y is no binding below 2 of group 0"),
    (|k| k.bindings.push(Access::Read), "binding 3 is listed as Read, but the entry point does not use it"),
    (|k| k.bindings[1] = Access::Write, "binding 1 is listed as Write, but the entry point does not use it"),
    (|k| edit(k, "@group(0) @binding(2)", "@group(2) @binding(2)"), "y is no binding below 3 of group 0"),
    (|k| edit(k, "params.factor", "spare[lane + 1u] * params.factor"), ""),
    (|k| edit(k, "array<f32>;\n\nvar", "array<f32, 64>;\n\nvar"), "y is no array of any length"),
    (
        |k| {
            edit(k, "@binding(1) var<storage", "@binding(0) var<storage");
            edit(k, "= x[lane]", "= x[lane] + spare[lane]");
        },
        "conflict with other resource",
    ),
    // Parameters.
    (|k| k.params = &[], "field 0 of the parameters is nothing in Rust, but count: u32 at 0 in WGSL"),
    (|k| k.params = &FIELDS[..1], "field 1 of the parameters is nothing in Rust, but factor: f32 at 4"),
    (|k| edit(k, "    count: u32,\n    factor: f32,", "    factor: f32,\n    count: u32,"), "field 0"),
    (
        |k| {
            edit(k, "count: u32", "count: i32");
            edit(k, "lane < params.count", "i32(lane) < params.count");
        },
        "is count: u32 at 0 in Rust, but count: i32 at 0 in WGSL",
    ),
    (|k| edit(k, "factor: f32", "@align(16) factor: f32"), "but factor: f32 at 16 in WGSL"),
    (|k| edit(k, "factor: f32,", "factor: f32,\n    more: u32,"), "is nothing in Rust, but more: u32 at 8"),
    (
        |k| edit(k, "factor: f32,", "factor: f32,\n    more: array<vec4<f32>, 16>,"),
        "has 272 bytes; at most 256 are bound",
    ),
    (|k| edit(k, "@group(1)", "@group(2)"), "neither a storage buffer nor the parameter block"),
    (
        |k| {
            edit(k, "params.factor", "2.0");
            edit(k, "params.count", "7u");
        },
        "the host gives parameters, but the entry point uses none",
    ),
    // Limits.
    (|k| k.requires.invocations = 32, "has 64 invocations a workgroup, but requires 32"),
    (|k| k.requires.workgroup_bytes = 272, "has 256 bytes of workgroup memory, but requires 272"),
    (|k| k.requires.workgroup_bytes = 252, "has 256 bytes of workgroup memory, but requires 252"),
    (
        |k| {
            edit(k, "array<f32, GROUP>", "array<f32, 4100>");
            k.requires.workgroup_bytes = 16400;
        },
        "has 16400 bytes of workgroup memory, but WebGPU allows 16384",
    ),
    (
        |k| {
            k.constants[0].1 = Const::U32(512);
            k.requires = Requires { workgroup_bytes: 2048, invocations: 512, ..k.requires };
        },
        "has 512 invocations a workgroup, but WebGPU allows 256",
    ),
    (
        |k| {
            edit(k, "workgroup_size(GROUP)", "workgroup_size(1, 1, 128)");
            k.requires.invocations = 128;
        },
        "has 128 invocations along one axis, but WebGPU allows 64",
    ),
    (|k| k.bindings = vec![Access::Read; 9], "has 9 storage buffers, but WebGPU allows 8"),
    (
        |k| {
            edit(k, "= x[lane]", "= subgroupAdd(x[lane])");
            k.requires.subgroup_size = Some(8);
        },
        "requires sub-groups of Some(8), but does not read their size",
    ),
    (
        |k| {
            edit(k, "= x[lane]", "= subgroupAdd(x[lane])");
            k.requires.subgroup_size = Some(64);
        },
        "requires sub-groups of Some(64), which WebGPU has not",
    ),
];

fn family(name: &'static str, source: &'static str) -> Family {
    Family { name, source, entries: &["forward"] }
}

/// Every wrong example is refused with its problem, and the right ones are not.
pub fn refused() -> Outcome {
    let mut problems = Vec::new();
    let mut checked = 0;
    let mut expect = |what: &str, found: Vec<String>, expected: &str| {
        checked += 1;
        let seen = match expected {
            "" => found.is_empty(),
            _ => found.iter().any(|p| p.contains(expected)),
        };
        if !seen {
            problems.push(format!("{what}: expected {expected:?}, got {found:?}"));
        }
    };
    let profiles = [("WebGPU", DeviceProfile::portable())];
    let check = |kernel: &Kernel| {
        let mut of_kernel = family("sum", RIGHT);
        if let Some(text) = kernel.parts.iter().find(|text| text.contains("@compute")) {
            of_kernel.source = text.to_string().leak();
        }
        kernel::check(kernel, &profiles, &[of_kernel, family("other", "// another")])
    };
    expect("the right kernel", check(&right()), "");
    for (i, (change, expected)) in KERNELS.iter().enumerate() {
        let mut kernel = right();
        change(&mut kernel);
        expect(&format!("kernel {i}"), check(&kernel), expected);
    }

    let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
    let families = [family("sum", RIGHT), family("sum_lanes", "@compute fn forward() {}")];
    let shaders = || {
        let lanes = file("sum_lanes.wgsl", families[1].source);
        vec![file("sum.wgsl", RIGHT), lanes, file("sum_part.wgsl", "@group"), file("lib/a.wgsl", "// @group")]
    };
    expect("the right shaders", files::listed(&shaders(), &families), "");
    for (path, text, expected) in [
        ("sum.wgsl", "@compute fn forward() {}", "sum.wgsl is not the text of the family sum"),
        ("sum_lanes.wgsl", "", "sum_lanes.wgsl has the entry points []"),
        ("sum_lanes.wgsl", "@compute fn forward() {} @compute fn more() {}", "FAMILIES lists [\"forward\"]"),
        ("sum_lanes.wgsl", "// @compute fn forward() {}", "has the entry points []"),
        ("lib/a.wgsl", "@group(0)", "lib/a.wgsl has bindings or entry points"),
        ("lib/a.wgsl", "@compute fn forward() {}", "lib/a.wgsl has bindings or entry points"),
        ("sum_part.wgsl", "@compute fn forward() {}", "sum_part.wgsl is no family"),
        ("total.wgsl", "", "total.wgsl is no family"),
    ] {
        let mut wrong = shaders();
        wrong.retain(|f| f.path != path);
        wrong.push(file(path, text));
        expect(path, files::listed(&wrong, &families), expected);
    }
    expect("no shaders", files::listed(&[], &families), "there is no sum.wgsl for the family sum");

    let ops =
        |more: &[&str]| -> Vec<File> { ["mod.rs"].iter().chain(more).map(|path| file(path, "")).collect() };
    expect("the right ops", files::counterparts("ops", &ops(&["sum.rs"]), &families), "");
    let missing = "there is no ops/sum.rs for the family of this name";
    expect("an op is missing", files::counterparts("ops", &ops(&[]), &families), missing);
    let spare = "ops/more.rs: a shader of this name, or a reason why not";
    expect(
        "an op without shader",
        files::counterparts("ops", &ops(&["sum.rs", "more.rs"]), &families),
        spare,
    );

    for (path, text, expected) in [
        ("ops/a.rs", "// wgpu::Device\n#![deny(unsafe_code)] //! unsafe", ""),
        ("gpu/a.rs", "use wgpu::Device; unsafe {}", ""),
        ("ops/a.rs", "\n    let x: wgpu::Device; // y", "src/ops/a.rs, line 2: wgpu:: outside of src/gpu/"),
        ("cli/cache.rs", "unsafe { x() }", ""),
        ("cli/cache.rs", "use wgpu::Device;", "src/cli/cache.rs, line 1: wgpu:: outside of src/gpu/"),
        (
            "lib.rs",
            "let x = \"http://\"; unsafe { y() }",
            "src/lib.rs, line 1: unsafe outside of src/gpu/ and src/cli/cache.rs",
        ),
    ] {
        expect(path, files::words(&[file(path, text)]), expected);
    }

    let found = |kernel: Kernel, by_case: bool| [Found { kernel, profiles: profiles.to_vec(), by_case }];
    let reached = |shaders: &[File], found: &[Found]| {
        files::reached(shaders, &families[..1], found).err().unwrap_or_default()
    };
    let right_file = || vec![file("sum.wgsl", RIGHT)];
    let other = || Kernel { entry: "backward", ..right() };
    expect("reached", reached(&right_file(), &found(right(), true)), "");
    expect(
        "by a model",
        reached(&right_file(), &found(right(), false)),
        "no case reaches the entry point forward",
    );
    expect("by another entry", reached(&right_file(), &found(other(), true)), "no case reaches");
    let renamed = Kernel { name: "total/x".into(), ..right() };
    expect("its name", reached(&right_file(), &found(renamed, true)), "total/x is named like no family");
    expect("no file", reached(&[], &found(right(), true)), "a kernel has a text that is no file of shaders/");
    expect("unused", reached(&shaders(), &found(right(), true)), "shaders/lib/a.wgsl is part of no kernel");

    let text = Text::new(&right()).map_err(|p| vec![p])?;
    for language in ["SPIR-V: ", "MSL: ", "HLSL: "] {
        expect("another entry", translate::problems(&other(), &text), language);
    }
    if translate::installed() {
        let folder = tempfile::tempdir().map_err(|e| vec![e.to_string()])?;
        let mut words = translate::to_spirv(&right(), &text, true).map_err(|p| vec![p])?;
        let validate = |words: &[u32]| {
            let problem = translate::spirv_val(&folder.path().join("a.spv"), words).err();
            problem.into_iter().collect::<Vec<_>>()
        };
        expect("the right SPIR-V", validate(&words), "");
        words.truncate(words.len() / 2);
        expect("half of the SPIR-V", validate(&words), "spirv-val: error");
    }
    if problems.is_empty() { Ok(checked) } else { Err(problems) }
}
