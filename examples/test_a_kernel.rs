//! Tests two kernels: a right one, and the same with a barrier dropped, whose report is printed.
//!
//! ```sh
//! cargo run --release --example test_a_kernel
//! ```

use wgformer::rng::Rng;
use wgformer::testing::{Failure, KernelTest, Report, Tolerance};

/// The sum of each row of 64 numbers: a workgroup a row.
const ROW_SUMS: &str = r#"
@group(0) @binding(0) var<storage, read> x: array<f32>;           // [rows, 64]
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;  // [rows]

var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) row: vec3<u32>, @builtin(local_invocation_index) i: u32) {
    part[i] = x[64u * row.x + i];
    for (var half = 32u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if i < half {
            part[i] += part[i + half];
        }
    }
    if i == 0u {
        sums[row.x] = part[0];
        printf("the sum of row %u is %f", row.x, part[0]);
    }
}
"#;

fn test(wgsl: &str) -> Result<Report, Failure> {
    let rows = 5;
    let mut rng = Rng::new(1);
    let x: Vec<f32> = (0..64 * rows).map(|_| rng.normal() as f32).collect();
    // The sum and, for the tolerance, the sum of the magnitudes.
    let sums = |row: &[f64]| (row.iter().sum(), row.iter().map(|x| x.abs()).sum());
    KernelTest::new(wgsl, "main")
        .input("x", &x)
        .output("sums", rows)
        .groups([rows, 1, 1])
        .printing()
        .check(|t| t.f64s("x").chunks(64).map(sums).collect::<Vec<(f64, f64)>>(), Tolerance::sum(64))
}

fn main() -> Result<(), Failure> {
    println!("{}\n", test(ROW_SUMS)?);

    println!("The same without its workgroupBarrier:\n");
    match test(&ROW_SUMS.replace("workgroupBarrier();", "")) {
        Err(failure) => println!("{failure}"),
        Ok(report) => println!("the race was not noticed:\n{report}"),
    }
    Ok(())
}
