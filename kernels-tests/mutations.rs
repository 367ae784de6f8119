//! Kernels made wrong on purpose, each in one place: the tests must notice every one of them. `scripts/mutations` runs
//! this.

use crate::cases;
use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use wgformer::gpu::Gpu;
use wgformer::kernel::Kernel;
use wgformer::testing::{Case, Runner, Shader};

/// One text of a shader, replaced by another.
struct Mutation {
    /// What is wrong then.
    what: &'static str,
    /// The file under shaders/, which has `old` once.
    file: &'static str,
    old: &'static str,
    new: &'static str,
    /// The op whose cases must notice, and a part of the names of those to try.
    op: &'static str,
    cases: &'static str,
}

/// One that replaces a text which the file has once.
const fn once(
    what: &'static str,
    file: &'static str,
    (old, new): (&'static str, &'static str),
    (op, cases): (&'static str, &'static str),
) -> Mutation {
    Mutation { what, file, old, new, op, cases }
}

const MUTATIONS: &[Mutation] = &[
    once(
        "a dropped barrier: sums are read before all are written",
        "matmul_vector.wgsl",
        (
            "sums[slice * COLUMNS + own] = acc[i];\n        workgroupBarrier();",
            "sums[slice * COLUMNS + own] = acc[i];",
        ),
        ("matmul", "NN"),
    ),
    once(
        "a dropped barrier: sums are overwritten while they are read",
        "matmul_vector.wgsl",
        ("workgroupBarrier();\n        sums[slice", "sums[slice"),
        ("matmul", "NN 2x300x33"),
    ),
    once(
        "a dropped barrier: slabs are used before all of them are there",
        "matmul_tile.wgsl",
        ("store_b(&next_b, lane);\n        workgroupBarrier();", "store_b(&next_b, lane);"),
        ("matmul", "NN"),
    ),
    once(
        "a dropped barrier: slabs are overwritten while they are used",
        "matmul_tile.wgsl",
        ("        workgroupBarrier();\n    }\n\n    if sums", "    }\n\n    if sums"),
        ("matmul", "NN 65x132x72"),
    ),
    once(
        "a dropped barrier within a tree of sums",
        "lib/rows_workgroup.wgsl",
        (
            "row_cells[lane] += row_cells[lane + half];\n        }\n        workgroupBarrier();",
            "row_cells[lane] += row_cells[lane + half];\n        }",
        ),
        ("softmax", ""),
    ),
    once(
        "a dropped barrier before a tree of maxima",
        "lib/rows_workgroup.wgsl",
        ("row_cells[lane].x = v;\n    workgroupBarrier();", "row_cells[lane].x = v;"),
        ("softmax", ""),
    ),
    once(
        "a dropped barrier before the rows of a table are summed",
        "embedding.wgsl",
        ("    workgroupBarrier();\n", ""),
        ("embedding", ""),
    ),
    once(
        "a dropped barrier before attention's weights are used",
        "attention.wgsl",
        (
            "            stage_kv(OF_V, b, h, s0, chunk, lane);\n            workgroupBarrier();\n            weigh_tile",
            "            stage_kv(OF_V, b, h, s0, chunk, lane);\n            weigh_tile",
        ),
        ("attention", "plain kv"),
    ),
    once(
        "the gradient of a bias without the last row of each slab",
        "matmul_tile.wgsl",
        (
            "for (var k = 0u; k < SLAB; k++) {\n                column_sum",
            "for (var k = 0u; k < SLAB - 1u; k++) {\n                column_sum",
        ),
        ("matmul", "linear of many rows"),
    ),
    once(
        "a slope at the gradient instead of at what was saved",
        "matmul.wgsl",
        ("activate_slope(elem(residual[index]), SLOPE)", "activate_slope(v, SLOPE)"),
        ("matmul", "between products"),
    ),
    once(
        "a gradient in place of the logits that forgets the target",
        "cross_entropy.wgsl",
        ("load_gradient(start + g) - wanted", "load_gradient(start + g)"),
        ("cross_entropy", "in place"),
    ),
    once(
        "a tile that is one column too narrow",
        "matmul_tile.wgsl",
        ("if row < params.m && column < params.n {", "if row < params.m && column + 1u < params.n {"),
        ("matmul", "NN"),
    ),
    once(
        "a tile that is one row too high",
        "matmul_tile.wgsl",
        ("if row < params.m && column < params.n {", "if row <= params.m && column < params.n {"),
        ("matmul", "NN"),
    ),
    once(
        "the last step of k left out",
        "matmul_subgroup.wgsl",
        ("select(0.0, 1.0, k0 + lane < work.k_end)", "select(0.0, 1.0, k0 + lane + 1u < work.k_end)"),
        ("matmul", "NN"),
    ),
    once(
        "a slab loaded ahead that is the one in use",
        "matmul_tile.wgsl",
        ("next_b = load_b(work, k0 + SLAB, lane)", "next_b = load_b(work, k0, lane)"),
        ("matmul", "large tile"),
    ),
    once(
        "the row before in place of the last of eight",
        "matmul_plain.wgsl",
        ("min(row + 7u, last)", "min(row + 6u, last)"),
        ("matmul", "NN"),
    ),
    once(
        "a transposed index",
        "matmul_tile.wgsl",
        ("a_slab[k * PITCH + local.y * RM + i]", "a_slab[k * PITCH + i * TY + local.y]"),
        ("matmul", "NN"),
    ),
    once(
        "rows and columns of B exchanged",
        "matmul_tile.wgsl",
        (
            "work.b + column * params.b_column + k * params.b_k",
            "work.b + column * params.b_k + k * params.b_column",
        ),
        ("matmul", "NN"),
    ),
    once(
        "the first part of a sum counted twice",
        "matmul.wgsl",
        ("for (var s = 1u; s < params.splits; s++)", "for (var s = 0u; s < params.splits; s++)"),
        ("matmul", ""),
    ),
    once(
        "a bias that is forgotten",
        "matmul.wgsl",
        ("v += elem(bias[column]);", "v += elem(0.0) * bias[column];"),
        ("matmul", "bias true"),
    ),
    once(
        "ranges of keys put together without their weights",
        "attention.wgsl",
        ("sum += weight * merged_sums", "sum += merged_sums"),
        ("attention", "T 1 S 1025"),
    ),
    once(
        "a range of keys that goes on into the next",
        "attention.wgsl",
        ("min(last_key(limit, at.first), first + params.span)", "last_key(limit, at.first)"),
        ("attention", "T 1 S 1025"),
    ),
    once(
        "a dropped barrier before keys are staged over what others still read",
        "attention_whole.wgsl",
        (
            "    workgroupBarrier();\n    stage_a(OF_K, b, h, 0u, chunk, lane);\n    workgroupBarrier();\n",
            "    stage_a(OF_K, b, h, 0u, chunk, lane);\n",
        ),
        ("attention", "few keys"),
    ),
    once(
        "the gradient of queries of the wrong columns",
        "attention_whole.wgsl",
        (
            "sums[i][j] += tile_p[s * P_STRIDE + lane % NC + j * NC] * k;",
            "sums[i][j] += tile_p[s * P_STRIDE + lane % NC + j] * k;",
        ),
        ("attention", "few keys"),
    ),
    once(
        "a missing causal mask",
        "attention.wgsl",
        ("|| s > (t | params.future)", ""),
        ("attention", "causal kv"),
    ),
    once(
        "a causal mask that shows one key too many",
        "attention_lanes.wgsl",
        ("s <= (t | future)", "s <= (t + 1u | future)"),
        ("attention", "causal kv"),
    ),
    once(
        "key lengths that are ignored",
        "attention.wgsl",
        ("return min(lengths[b], params.s);", "return params.s;"),
        ("attention", "lengths kv"),
    ),
    once(
        "an old maximum that is not scaled down",
        "attention_lanes.wgsl",
        (
            "            l[i] *= shrink;\n            for (var c = 0u; c < CHUNKS; c++) {",
            "            for (var c = 0u; c < CHUNKS; c++) {",
        ),
        ("attention", "T 1 S 1025"),
    ),
    once(
        "gamma and beta exchanged",
        "layer_norm.wgsl",
        ("* inv * held_gamma[step] + held_beta[step]", "* inv * held_beta[step] + held_gamma[step]"),
        ("layer_norm", ""),
    ),
    once(
        "the epsilon outside of the root",
        "layer_norm.wgsl",
        (
            "inverseSqrt(max(moments.x - shift * shift, 0.0) + params.eps)",
            "(inverseSqrt(max(moments.x - shift * shift, 1e-30)) + params.eps)",
        ),
        ("layer_norm", ""),
    ),
    once(
        "the gradients of gamma and beta exchanged",
        "layer_norm.wgsl",
        ("        d_gamma[column] = sum;", "        d_beta[column] = sum;"),
        ("layer_norm", ""),
    ),
    once(
        "an unwritten last element",
        "elementwise.wgsl",
        (
            "    if i >= params.count {\n        return;\n    }\n    if FUNCTION == SCALE {",
            "    if i + 1u >= params.count {\n        return;\n    }\n    if FUNCTION == SCALE {",
        ),
        ("elementwise", ""),
    ),
    once(
        "a write beyond the end",
        "dropout.wgsl",
        ("    if i >= params.count {", "    if i > params.count {"),
        ("dropout", ""),
    ),
    once(
        "a softmax without the row's maximum taken off",
        "softmax.wgsl",
        ("y[start + i] = held[j] * factor;", "y[start + i] = held[j] / row_total;"),
        ("softmax", ""),
    ),
    once(
        "rows beyond the first workgroup's grid left out",
        "softmax.wgsl",
        ("let index = here.group.y * here.groups.x + here.group.x;", "let index = here.group.x;"),
        ("softmax", "70000"),
    ),
    once(
        "the last of several equal maxima instead of the first",
        "argmax.wgsl",
        ("if high > top {", "if high >= top {"),
        ("argmax", ""),
    ),
    once(
        "label smoothing that forgets the target",
        "cross_entropy.wgsl",
        ("inv_count[0] * (1.0 - params.smoothing)", "inv_count[0]"),
        ("cross_entropy", ""),
    ),
    once(
        "ignored targets that count",
        "cross_entropy.wgsl",
        ("select(1.0, 0.0, all_targets[i] == params.ignore)", "1.0"),
        ("cross_entropy", ""),
    ),
    once(
        "positions that do not move on",
        "embedding.wgsl",
        ("p += min(offset[0], params.positions);", "p += 0u * offset[0];"),
        ("embedding", "position"),
    ),
    once(
        "dropout's factor left out of a gradient",
        "embedding.wgsl",
        ("return masked(d_out[i], key, i);", "return d_out[i];"),
        ("embedding", "dropout"),
    ),
    once(
        "a cache written one position too late",
        "cache_write.wgsl",
        ("params.positions + first + t;", "params.positions + first + t + 1u;"),
        ("cache_write", ""),
    ),
    once(
        "the last row of a chunk left out",
        "column_sum.wgsl",
        ("min(first + params.chunk, params.rows)", "min(first + params.chunk, params.rows) - 1u"),
        ("column_sum", ""),
    ),
    once(
        "a second moment that is not squared",
        "optimizer.wgsl",
        ("params.one_minus_beta2 * (g * g)", "params.one_minus_beta2 * abs(g)"),
        ("optimizer", "adam 64"),
    ),
    once(
        "an update in place of one element too many",
        "optimizer.wgsl",
        (
            "i < params.count; i += GROUP) {\n            update(i, rates);",
            "i <= params.count; i += GROUP) {\n            update(i, rates);",
        ),
        ("optimizer", "adam"),
    ),
    once(
        "a slope that is not the function's",
        "lib/activation.wgsl",
        ("s * (elem(1.0) + x * (elem(1.0) - s))", "s * (elem(1.0) + x * s)"),
        ("elementwise", ""),
    ),
];

/// Runs the cases on each mutation, as many at a time as there are devices. An error where one is not noticed, or does not
/// apply any more.
pub fn run(devices: &[Gpu], seed: u64, filter: &[String]) -> Result<(), String> {
    devices.first().iter().for_each(|gpu| println!("adapter: {}", gpu.description()));
    let all = cases::all();
    let chosen = MUTATIONS.iter().map(|m| (format!("{} {}", m.file, m.what), m));
    let chosen: Vec<_> =
        chosen.filter(|(name, _)| filter.iter().all(|f| name.contains(f.as_str()))).collect();
    let (next, caught, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for gpu in devices {
            scope.spawn(|| {
                while let Some((name, m)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (count, line) = match m.caught(gpu, seed, &all) {
                        Ok(by) => (&caught, format!("caught   {name}\n         {by}")),
                        Err(problem) => (&failed, format!("FAILED   {name}: {problem}")),
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    println!("{line}");
                }
            });
        }
    });
    let (caught, failed) = (caught.into_inner(), failed.into_inner());
    println!("{caught} of {} mutations caught", caught + failed);
    match (caught, failed) {
        (0, 0) => Err("no mutation matches the filter".to_string()),
        (_, 0) => Ok(()),
        _ => Err(format!("{failed} mutations were not caught")),
    }
}

impl Mutation {
    /// What noticed it.
    fn caught(&self, gpu: &Gpu, seed: u64, all: &[(&str, Vec<Case>)]) -> Result<String, String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders").join(self.file);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let times = text.matches(self.old).count();
        if times != 1 {
            return Err(format!("the text to replace is there {times} times, not once"));
        }
        let (old, new) = (self.old, self.new);
        let change = move |kernel: &mut Kernel| {
            // The file's own text only: others may have the same line.
            for part in kernel.parts.iter_mut().filter(|part| ***part == text) {
                *part = Cow::Owned(part.replace(old, new));
            }
        };
        let mut tried = 0;
        let cases = all.iter().filter(|(op, _)| *op == self.op).flat_map(|(_, cases)| cases);
        for case in cases.filter(|c| c.name.contains(self.cases)) {
            let mut runner = Runner::new(gpu.clone(), seed);
            let copy = change.clone();
            runner.change = Some(Box::new(copy));
            if !self.applies(case, &runner, &change)? {
                continue;
            }
            tried += 1;
            if let Some(first) = case.kernels(&runner).problems.first() {
                let line: String = first.text.chars().take(160).collect();
                return Ok(format!("by {} {}: {}: {line}", self.op, case.name, first.variant));
            }
        }
        Err(format!("not noticed by any of {tried} cases"))
    }

    /// Whether a case uses a kernel with this text; an error where the changed text is no valid shader, which would be
    /// noticed for a wrong reason.
    fn applies(&self, case: &Case, on: &Runner, change: &dyn Fn(&mut Kernel)) -> Result<bool, String> {
        let mut applies = false;
        for (_, profile) in wgformer::testing::profiles(&on.gpu) {
            for kernel in case.plan(&profile, on.seed).map_err(|e| e.to_string())?.kernels {
                let mut changed = kernel.clone();
                change(&mut changed);
                if changed != kernel {
                    applies = true;
                    Shader::new(&changed.wgsl(), changed.entry).map_err(|e| e.to_string())?;
                }
            }
        }
        Ok(applies)
    }
}
