//! The harness for anybody's kernels: right ones pass, and wrong ones of each kind are caught and named.

use wgformer::rng::Rng;
use wgformer::testing::{Check, Failure, Fault, KernelTest, Outcome, Report, Tolerance, device};

const SCALE: &str = "
override FACTOR: f32;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < N {
        y[id.x] = FACTOR * x[id.x];
    }
}
const N = 1000u;
";

fn numbers(n: usize) -> Vec<f32> {
    let mut rng = Rng::new(1);
    (0..n).map(|_| rng.normal() as f32).collect()
}

/// The test of [`SCALE`], with a change to its text.
fn scale(wrong: &str, instead: &str) -> Result<Report, Failure> {
    assert!(SCALE.contains(wrong), "{wrong}");
    let x = numbers(1000);
    KernelTest::new(SCALE.replace(wrong, instead), "main")
        .input("x", &x)
        .output("y", 1000)
        .constant("FACTOR", 3.0)
        .groups([1000usize.div_ceil(64), 1, 1])
        .check(|t| t.f64s("x").map(|x| 3.0 * x), Tolerance::ulp(1))
}

/// Fails with faults of these checks, no others; their texts.
fn caught(result: Result<Report, Failure>, checks: &[Check]) -> String {
    let failure = result.expect_err("a wrong kernel passed");
    let mut found: Vec<Check> = failure.faults().iter().map(|f| f.check).collect();
    found.dedup();
    assert_eq!(found, checks, "{failure}");
    let report = failure.report().unwrap();
    for (check, outcome) in report.checks() {
        assert_eq!(*outcome == Outcome::Failed, checks.contains(check), "{failure}");
    }
    // What `unwrap` prints is what people read.
    assert_eq!(format!("{failure:?}"), format!("{failure}"));
    failure.to_string()
}

/// Could not run; the message, which is one line.
fn refused(result: Result<Report, Failure>) -> String {
    match result {
        Err(Failure::Setup(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_right_kernel_passes_every_check() {
    let report = scale("main", "main").unwrap();
    assert_eq!(report.left_out().count(), 0, "{report}");
    assert_eq!(report.checks().iter().map(|(c, _)| *c).collect::<Vec<_>>(), Check::ALL);
    assert_eq!(report.worst("y").unwrap().max(0.5), 0.5, "correct rounding is half a unit: {report}");
    assert_eq!(report.adapter(), device().unwrap().description());
    assert!(report.to_string().starts_with("kernel `main` is right, on "), "{report}");
}

#[test]
fn off_by_one_is_caught() {
    let text = caught(scale("x[id.x]", "x[max(id.x, 1u) - 1u]"), &[Check::Reference]);
    assert!(text.contains("y: 999 of 1000 elements are wrong; the 5 worst:"), "{text}");
    assert!(text.contains("allowed"), "{text}");
}

#[test]
fn reading_beyond_the_end_is_caught() {
    let text = caught(scale("x[id.x]", "x[id.x + 1u]"), &[Check::Reference, Check::Guards]);
    assert!(text.contains("[999] is NaN, expected"), "{text}");
    let told = "y: the result depends on what lies outside of the buffers: the kernel reads there";
    assert!(text.contains(told), "{text}");
}

#[test]
fn an_element_left_out_is_caught() {
    let text = caught(scale("id.x < N", "id.x < N - 1u"), &[Check::Written]);
    assert!(text.contains("y: 1 of 1000 elements are left unwritten, the first of them [999]"), "{text}");
}

#[test]
fn a_write_outside_is_caught() {
    let text = caught(scale("id.x < N", "true"), &[Check::Guards]);
    let told = "y: written beyond its end: element 1000 is written, but it has 1000, from 0 to 999";
    assert!(text.contains(told), "{text}");
}

#[test]
fn a_write_far_outside_is_caught() {
    caught(scale("y[id.x] =", "y[id.x + 1003u] = 0.0; y[id.x] ="), &[Check::Guards]);
}

#[test]
fn nan_is_caught() {
    let text = caught(scale("FACTOR * x[id.x]", "sqrt(-1.0 - abs(x[id.x]))"), &[Check::Reference]);
    assert!(text.contains("is NaN, expected"), "{text}");
}

#[test]
fn a_change_of_an_input_is_caught() {
    let source =
        SCALE.replace("read> x", "read_write> x").replace("if id.x < N {", "if id.x < N { x[id.x] *= 1.5;");
    let test =
        || KernelTest::new(&source, "main").output("y", 1000).constant("FACTOR", 2.0).groups([16, 1, 1]);
    let x = numbers(1000);
    let changed = test().input("x", &x).check(|t| t.f64s("x").map(|x| 3.0 * x), Tolerance::ulp(2));
    let text = caught(changed, &[Check::Reference]);
    assert!(text.contains("x: an input, but the kernel changed it: 1000 of 1000"), "{text}");
    // As an `in_out` it is right.
    test()
        .in_out("x", &x)
        .expect("x", |t| t.f64s("x").map(|x| 1.5 * x), Tolerance::ulp(1))
        .expect("y", |t| t.f64s("x").map(|x| 3.0 * x), Tolerance::ulp(2))
        .run()
        .unwrap();
    // As scratch too, whatever it holds.
    test().scratch("x", &x).check(|t| t.f64s("x").map(|x| 3.0 * x), Tolerance::ulp(2)).unwrap();
}

const SUM: &str = "
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;
var<workgroup> part: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) i: u32,
        @builtin(workgroup_id) group: vec3<u32>) {
    part[i] = x[id.x];
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if i < half {
            part[i] += part[i + half];
        }
        storageBarrier();
        workgroupBarrier();
    }
    if i == 0u {
        sums[group.x] = part[0];
    }
}
";

/// The sum of each 64 of `x`, as a test of [`SUM`] with a change to its text.
fn sum(wrong: &str, instead: &str) -> KernelTest<'static> {
    assert!(SUM.contains(wrong), "{wrong}");
    KernelTest::new(SUM.replace(wrong, instead), "main")
        .input("x", numbers(640))
        .output("sums", 10)
        .groups([10, 1, 1])
        .expect(
            "sums",
            |t| {
                let sum = |part: &[f64]| (part.iter().sum(), part.iter().map(|x: &f64| x.abs()).sum());
                t.f64s("x").chunks(64).map(sum).collect::<Vec<(f64, f64)>>()
            },
            Tolerance::sum(64),
        )
}

#[test]
fn a_reduction_passes_every_check() {
    let report = sum("main", "main").run().unwrap();
    assert_eq!(report.left_out().count(), 0, "{report}");
    assert!(report.checks().iter().all(|(_, outcome)| *outcome == Outcome::Passed), "{report}");
}

#[test]
fn a_dropped_barrier_is_named() {
    for wrong in [
        "        storageBarrier();\n        workgroupBarrier();\n",
        "part[i] = x[id.x];\n    workgroupBarrier();",
    ] {
        let instead = if wrong.contains("x[id") { "part[i] = x[id.x];" } else { "" };
        let failure = sum(wrong, instead).run().expect_err("a race passed");
        let order = failure.faults().iter().find(|f| f.check == Check::Order).unwrap();
        let told = "the result depends on the order in which invocations run: a workgroupBarrier is missing";
        assert!(order.text.starts_with(told), "{failure}");
    }
}

#[test]
fn memory_taken_to_be_zero_is_named() {
    let sum = || sum("part[i] = x[id.x];", "part[i] += x[id.x];");
    let text = caught(sum().run(), &[Check::WorkgroupMemory]);
    assert!(text.contains("it is taken to be zero (then say .zeroed_workgroup_memory())"), "{text}");
    let report = sum().zeroed_workgroup_memory().run().unwrap();
    assert_eq!(report.left_out().map(|(c, _)| c).collect::<Vec<_>>(), [Check::WorkgroupMemory]);
}

#[test]
fn two_writers_of_one_place_are_caught() {
    let result = scale("y[id.x] = FACTOR", "y[id.x / 32u * 32u] = x[id.x]; y[id.x] = FACTOR");
    let text = result.unwrap_err().to_string();
    assert!(
        text.contains(
            "y: the result depends on the order in which invocations run: two invocations write one"
        )
    );
}

#[test]
fn a_check_that_cannot_run_is_told() {
    // A name that the harness takes for itself.
    let test = |more: &str| {
        KernelTest::new(SUM.to_string() + more, "main")
            .input("x", vec![1.0f32; 128])
            .output("sums", 2)
            .groups([2, 1, 1])
            .check(|_| [64.0; 2], Tolerance::exact())
            .unwrap()
    };
    assert_eq!(test("").left_out().count(), 0);
    let report = test("const WGF_SIZE = 3;");
    let out: Vec<_> = report.left_out().collect();
    assert_eq!(out.iter().map(|(c, _)| *c).collect::<Vec<_>>(), [Check::WorkgroupMemory, Check::Order]);
    assert!(out[0].1.contains("redefinition of `WGF_SIZE`"), "{report}");
    assert!(
        report.to_string().contains("left out  workgroup memory is written before it is read\n"),
        "{report}"
    );
}

#[test]
fn a_workgroup_of_a_constant_size_is_checked_too() {
    let source = SUM
        .replace("@workgroup_size(64)", "@workgroup_size(2u * HALF)")
        .replace("array<f32, 64>", "array<f32, 2u * HALF>")
        .replace("var half = 32u", "var half = HALF")
        + "@id(3) override HALF: u32 = 1u;";
    let test = |source: &str| {
        KernelTest::new(source, "main")
            .constant("HALF", 32)
            .input("x", numbers(128))
            .output("sums", 2)
            .groups([2, 1, 1])
            .check(
                |t| t.f64s("x").chunks(64).map(|c| c.iter().sum::<f64>()).collect::<Vec<_>>(),
                Tolerance::absolute(1e-4),
            )
    };
    assert_eq!(test(&source).unwrap().left_out().count(), 0);
    let wrong = test(&source.replace("workgroupBarrier();", "")).unwrap_err();
    assert!(wrong.faults().iter().any(|f| f.check == Check::WorkgroupMemory), "{wrong}");
}

#[test]
fn transposed_indices_are_caught_where_they_are() {
    let source = "
@group(0) @binding(0) var<storage, read> x: array<array<u32, 6>, 4>;
@group(0) @binding(1) var<storage, read_write> y: array<array<u32, 6>, 4>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) at: vec3<u32>) { y[at.y][at.x] = x[at.x % 4u][at.y]; }
";
    let test = || {
        KernelTest::new(source, "main")
            .input("x", (0..24).collect::<Vec<u32>>())
            .output("y", [4, 6])
            .groups([6, 4, 1])
    };
    let text = caught(test().check(|t| t.f64s("x"), Tolerance::exact()), &[Check::Reference]);
    assert!(text.contains("[0, 3] is 18, expected 3\n"), "{text}");
    test().check(|_| (0..24).map(t_at), Tolerance::exact()).unwrap();
}

/// What the kernel of the test above puts at a place.
fn t_at(i: usize) -> f64 {
    let (row, column) = (i / 6, i % 6);
    (6 * (column % 4) + row) as f64
}

#[test]
fn uniforms_structs_and_padding() {
    let source = "
struct Params { count: u32, shift: i32, scale: vec2<f32> }
struct Particle { at: vec3<f32>, id: u32, to: vec3<f32> }
@group(1) @binding(2) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> particles: array<Particle>;
@group(2) @binding(0) var<storage, read_write> counts: array<atomic<i32>, 2>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.count { return; }
    let i = i32(id.x) + params.shift;
    particles[id.x] = Particle(vec3(f32(i), 0.0, 1.0), id.x, vec3(params.scale, 0.5));
    atomicAdd(&counts[id.x % 2u], i);
}
";
    let report = KernelTest::new(source, "main")
        .input("params", (5u32, -3i32, [0.25f32, 4.0]))
        .output("particles", 35)
        .in_out("counts", [10i32, 20])
        .groups([2u32, 1, 1])
        .expect(
            "particles",
            |_| (0..5).flat_map(|i| [i as f64 - 3.0, 0.0, 1.0, i as f64, 0.25, 4.0, 0.5]),
            Tolerance::exact(),
        )
        .expect("counts", |_| [10.0 - 3.0 - 1.0 + 1.0, 20.0 - 2.0], Tolerance::exact())
        .run()
        .unwrap();
    assert_eq!(report.left_out().count(), 0, "{report}");
}

const LENGTH: &str = "
@group(0) @binding(0) var<storage, read> x: array<vec3<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec2<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < min(arrayLength(&x), arrayLength( &y )) { y[id.x] = x[id.x].zx; }
}
";

#[test]
fn the_length_of_an_array_is_right() {
    let test = |source: &str| {
        KernelTest::new(source, "main")
            .input("x", numbers(300))
            .output("y", [100, 2])
            .groups([2, 1, 1])
            .check(
                |t| t.f64s("x").chunks(3).flat_map(|v| [v[2], v[0]]).collect::<Vec<_>>(),
                Tolerance::exact(),
            )
    };
    let report = test(LENGTH).unwrap();
    assert_eq!(report.left_out().count(), 0, "{report}");
    // What an adapter may clamp to the last element is right there.
    let text =
        caught(test(&LENGTH.replace("{ y[id.x]", "{ y[id.x + 100u] = x[99].zx; y[id.x]")), &[Check::Guards]);
    assert!(text.contains("y: written beyond its end"), "{text}");
    let other = LENGTH.replace("min(arrayLength(&x), arrayLength( &y ))", "length()")
        + "fn length() -> u32 { let p = &y; return arrayLength(p); }";
    let report = test(&other).unwrap();
    assert_eq!(report.left_out().map(|(c, _)| c).collect::<Vec<_>>(), [Check::Guards], "{report}");
}

#[test]
fn appending_is_right_in_any_order() {
    let source = "
@group(0) @binding(0) var<storage, read_write> count: atomic<u32>;
@group(0) @binding(1) var<storage, read_write> list: array<u32>;
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { list[atomicAdd(&count, 1u)] = id.x; }
";
    let test = |tolerance| {
        KernelTest::new(source, "main")
            .in_out("count", 0u32)
            .output("list", 128)
            .groups([4, 1, 1])
            .expect("count", |_| [128.0], Tolerance::exact())
            .expect("list", |_| (0..128).map(|_| 63.5), tolerance)
    };
    let within = || Tolerance::absolute(63.5);
    let failure = test(within()).run().unwrap_err();
    let found = |f: &Fault| [Check::Order, Check::Repeated].contains(&f.check);
    assert!(failure.faults().iter().any(found), "{failure}");
    let report = test(within()).any_order().run().unwrap();
    assert!(report.left_out().any(|(check, _)| check == Check::Order), "{report}");
    assert!(test(Tolerance::absolute(60.0)).any_order().run().is_err());
}

#[test]
fn printf_prints_or_costs_nothing() {
    let source = "
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
fn twice(x: u32) -> u32 {
    printf(\"twice %u; (in base 16: %x)\", x, x);
    return 2u * x;
}
@compute @workgroup_size(4)
fn main(@builtin(local_invocation_index) i: u32) {
    y[i] = twice(i + 10u);
    if i > 2u { printf(\"%f %i %b 100%%\", f32(i) / 2.0, -i32(i), i == 3u); }
}
";
    let test = |source: &str| KernelTest::new(source, "main").output("y", 4).groups([1, 1, 1]);
    let twice = |i: u32| f64::from(2 * (i + 10));
    let silent = test(source).check(|_| (0..4).map(twice), Tolerance::exact()).unwrap();
    assert!(silent.printed().is_empty());
    let report = test(source).printing().check(|_| (0..4).map(twice), Tolerance::exact()).unwrap();
    let expected = [
        "(0, 0, 0) twice 10; (in base 16: 0xa)",
        "(1, 0, 0) twice 11; (in base 16: 0xb)",
        "(2, 0, 0) twice 12; (in base 16: 0xc)",
        "(3, 0, 0) twice 13; (in base 16: 0xd)",
        "(3, 0, 0) 1.5 -3 true 100%",
    ];
    assert_eq!(report.printed(), expected);
    assert!(report.to_string().ends_with("(3, 0, 0) 1.5 -3 true 100%"), "{report}");
    // A wrong kernel prints too.
    let failure = test(source).printing().check(|_| [0.0; 4], Tolerance::exact()).unwrap_err();
    assert_eq!(failure.report().unwrap().printed(), expected);

    let wrong = source.replace("x, x);", "x);");
    let text = refused(test(&wrong).check(|_| [0.0; 4], Tolerance::exact()));
    assert_eq!(text, "printf in line 4: \"twice %u; (in base 16: %x)\" needs 2 arguments, but has 1");
    let wrong = source.replace("x, x);", "x, 1.5f);");
    let text = refused(test(&wrong).printing().check(|_| [0.0; 4], Tolerance::exact()));
    assert!(text.contains("wgf_printf_0( x, 1.5f);"), "{text}");
}

#[test]
fn messages_without_room_are_counted() {
    let source = "
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var n = 0u; n < 20u; n++) { printf(\"%u\", n); }
    y[id.x] = id.x;
}
";
    let report = KernelTest::new(source, "main")
        .output("y", 1024)
        .groups([16, 1, 1])
        .printing()
        .check(|_| (0..1024).map(f64::from), Tolerance::exact())
        .unwrap();
    assert_eq!(report.printed().len(), (1 << 16) / 5);
    assert_eq!(report.printed().len() + report.lost() as usize, 20 * 1024);
    assert!(report.to_string().contains("messages that had no room"), "{report}");
}

#[test]
fn a_device_of_ones_own() {
    let gpu = wgformer::gpu::request(&Default::default()).unwrap();
    let report = KernelTest::new(SCALE, "main")
        .on(&gpu)
        .input("x", vec![1.0f32; 1000])
        .output("y", 1000)
        .constant("FACTOR", 0.5)
        .groups([16, 1, 1])
        .check(|_| vec![0.5; 1000], Tolerance::exact())
        .unwrap();
    assert_eq!(report.adapter(), gpu.description());
}

#[test]
fn what_does_not_fit_is_one_clear_line() {
    let test = |source: &str| KernelTest::new(source, "main").groups([16, 1, 1]);
    let x = || vec![1.0f32; 1000];
    let scaled = |source: &str| test(source).constant("FACTOR", 1.0);
    let whole = || scaled(SCALE).input("x", x()).output("y", 1000);
    let ones = |_: &wgformer::testing::Given| vec![1.0; 1000];
    let exact = Tolerance::exact;
    whole().check(ones, exact()).unwrap();
    let cases: Vec<(Result<Report, Failure>, &str)> = vec![
        (
            whole().input("z", x()).check(ones, exact()),
            "z: the text has no buffer of this name; it has: x, y",
        ),
        (
            scaled(SCALE).output("y", 1000).check(ones, exact()),
            "x: the kernel uses it (@group(0) @binding(0) var<storage, read>), but the test gives nothing: say \
             .input(\"x\", ..)",
        ),
        (whole().input("x", x()).check(ones, exact()), "x: given twice"),
        (
            scaled(SCALE).output("x", 1000).output("y", 1000).check(ones, exact()),
            "x: @group(0) @binding(0) var<storage, read>: the kernel cannot write it: say .input(..), or declare it \
             `var<storage, read_write>`",
        ),
        (
            scaled(SCALE).input("x", vec![1u32; 1000]).output("y", 1000).check(ones, exact()),
            "x: number 0 is given as u32, but is f32 in the text",
        ),
        (
            scaled(&SCALE.replace("array<f32>", "array<vec4<f32>>"))
                .input("x", vec![1.0f32; 10])
                .check(ones, exact()),
            "x: 10 numbers given, but its type has a multiple of 4",
        ),
        (
            KernelTest::new(SCALE, "mein").groups([1, 1, 1]).check(ones, exact()),
            "shader entry \"mein\": there is none of this name; there are: main",
        ),
        (
            whole().constant("FACTR", 1.0).check(ones, exact()),
            "FACTR: the text has no override constant of this name; it has: FACTOR",
        ),
        (
            test(SCALE).input("x", x()).output("y", 1000).check(ones, exact()),
            "FACTOR: the text gives this override constant no value: say .constant(\"FACTOR\", ..)",
        ),
        (
            whole().groups([1, 70_000_000, 1]).check(ones, exact()),
            "kernel `main` needs 70000000 of max_compute_workgroups_per_dimension, but this device allows 65535",
        ),
        (whole().groups([1, -1, 1]).check(ones, exact()), "groups: -1 is no number of workgroups"),
        (
            KernelTest::new(SCALE, "main").input("x", x()).output("y", 9).check(ones, exact()),
            "groups: not given: say .groups([x, y, z]), the workgroups to run",
        ),
        (
            whole().check(|t| t.f64s("X"), exact()),
            "X: the reference asks for it, but the test gives it no content; it gives: x",
        ),
        (whole().check(|_| [1.0; 999], exact()), "y: it has 1000 numbers, but its reference gives 999"),
        (
            whole().check(|_| std::iter::repeat(1.0), exact()),
            "y: it has 1000 numbers, but its reference gives more",
        ),
        (
            whole().check(ones, Tolerance::absolute(f64::NAN)),
            "tolerance: NaN is no size of an error: give one from 0 on",
        ),
        (whole().expect("x", ones, exact()).run(), "x: expected, but no output of the test; those are: y"),
        (
            test(SUM).input("x", x()).scratch("sums", x()).run(),
            "check: there is no output to compare: say .output(..) or .in_out(..)",
        ),
        (
            test(SUM).input("x", x()).output("sums", [1 << 40, 1 << 40]).run(),
            "sums: [1099511627776, 1099511627776] has more numbers than a buffer of a test can have, 1073741824",
        ),
        (
            whole().run(),
            "y: nothing is expected of it: say .expect(..), or .scratch(..) where its content does not matter",
        ),
        (whole().expect("y", ones, exact()).check(ones, exact()), "y: expected twice"),
        (
            scaled(&SCALE.replace("read> x", "read_write> x"))
                .in_out("x", x())
                .output("y", 1000)
                .check(ones, exact()),
            "check: there are several outputs (x, y): say .expect(..) for each, then .run()",
        ),
        (
            test(
                "@group(0) @binding(0) var t: texture_2d<f32>;
                  @compute @workgroup_size(1) fn main() { _ = textureLoad(t, vec2(0u), 0u); }",
            )
            .check(ones, exact()),
            "t: it is a texture or a sampler: only kernels over buffers can be tested",
        ),
    ];
    for (result, message) in cases {
        assert_eq!(refused(result), message);
    }
    let text = refused(test(&SCALE.replace("FACTOR *", "FAKTOR *")).check(ones, exact()));
    assert!(text.contains("no definition in scope for identifier: `FAKTOR`"), "{text}");
    assert!(text.contains("wgsl:8:"), "naga's report says where: {text}");
}
