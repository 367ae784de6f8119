//! The shader tests: `cargo test --release --test kernels -- [FILTER]`. No adapter is a failure.

// `!(error <= bound)` is meant: NaN must fail.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

mod cases;
#[cfg(feature = "io")]
mod golden;
mod harness;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use wgformer::gpu::Gpu;

/// Runs a case with a seed: the number of GPU runs, or the problems.
type RunCase = dyn Fn(&Gpu, u64) -> Result<usize, Vec<String>> + Send + Sync;

/// A case of any kind.
pub struct Test {
    name: String,
    run: Box<RunCase>,
}

impl From<harness::Case> for Test {
    fn from(case: harness::Case) -> Self {
        Test { name: case.name.clone(), run: Box::new(move |gpu, seed| case.run(gpu, seed)) }
    }
}

/// Every op with its cases, and the comparisons with the outputs of other software.
fn tests() -> Vec<(&'static str, Vec<Test>)> {
    #[cfg_attr(not(feature = "io"), allow(unused_mut))]
    let mut all: Vec<(&str, Vec<Test>)> = cases::all()
        .into_iter()
        .map(|(op, cases)| (op, cases.into_iter().map(Test::from).collect()))
        .collect();
    #[cfg(feature = "io")]
    all.push(("golden", golden::tests()));
    all
}

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if let Err(message) = run(&filter) {
        eprintln!("{message}");
        std::process::exit(1);
    }
}

fn run(filter: &[String]) -> Result<(), String> {
    let request =
        wgformer::gpu::Request { name: std::env::var("WGPU_ADAPTER_NAME").ok(), ..Default::default() };
    let gpu = wgformer::gpu::request(&request).map_err(|e| e.to_string())?;
    println!("adapter: {}", gpu.name());
    let seed = std::env::var("WGFORMER_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);

    let all = tests();
    let chosen: Vec<(&str, &Test)> = all
        .iter()
        .flat_map(|(op, cases)| cases.iter().map(move |c| (*op, c)))
        .filter(|(op, c)| filter.iter().all(|f| format!("{op} {}", c.name).contains(f.as_str())))
        .collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; chosen.len()]);
    let start = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((op, case)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let result =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.run)(&gpu, seed)))
                            .unwrap_or_else(|_| Err(vec!["panicked".to_string()]));
                    if let Err(problems) = &result {
                        let lines = problems.join("\n    ");
                        println!("FAILED {op} {:?} (seed {seed})\n    {lines}", case.name);
                    }
                    let index = chosen.iter().position(|(_, c)| std::ptr::eq(*c, *case)).unwrap();
                    results.lock().unwrap()[index] = Some((result.map_err(|_| ()), begin.elapsed()));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    println!("{:<24}{:>8}{:>8}{:>10}{:>10}", "op", "cases", "failed", "GPU runs", "seconds");
    let (mut passed, mut failed) = (0, 0);
    for (op, _) in &all {
        let of_op: Vec<_> = chosen
            .iter()
            .zip(&results)
            .filter(|((o, _), _)| o == op)
            .filter_map(|(_, r)| r.as_ref())
            .collect();
        if of_op.is_empty() {
            continue;
        }
        let bad = of_op.iter().filter(|(r, _)| r.is_err()).count();
        let runs: usize = of_op.iter().filter_map(|(r, _)| r.as_ref().ok()).sum();
        let seconds: f64 = of_op.iter().map(|(_, t)| t.as_secs_f64()).sum();
        println!("{op:<24}{:>8}{bad:>8}{runs:>10}{seconds:>10.1}", of_op.len());
        passed += of_op.len() - bad;
        failed += bad;
    }
    println!("{:.1} s on {}", start.elapsed().as_secs_f64(), gpu.name());
    if passed + failed == 0 {
        return Err("no case matches the filter".to_string());
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 { Err(format!("{failed} cases failed")) } else { Ok(()) }
}
