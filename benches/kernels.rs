//! The works of `wgformer bench run --quick` under criterion, which compares with its own last run:
//! `cargo bench --bench kernels -- matmul/nn`. Each is verified before it is timed. `WGPU_ADAPTER_NAME` names the adapter.

use criterion::Criterion;
use std::time::Duration;
use wgformer::bench::{Extent, Prepared, Settings, Sizes, works};
use wgformer::gpu::{self, Request};

fn main() {
    let request = Request { name: std::env::var("WGPU_ADAPTER_NAME").ok(), ..Request::default() };
    let gpu = gpu::request(&request).unwrap_or_else(|e| panic!("no device: {e}"));
    println!("{}", gpu.description());
    let settings = Settings {
        seed: 1,
        rounds: 10,
        samples: 5,
        warm_up: Duration::from_millis(100),
        budget: Duration::MAX,
        most_bytes: 4 << 30,
        change: None,
        fresh: Box::new(move || gpu::request(&request)),
    };
    // Criterion doubles the repetitions of a submission until the warm-up is over: a driver may take long ones for a hang.
    let warm_up = Duration::from_millis(500);
    let mut criterion = Criterion::default().warm_up_time(warm_up).configure_from_args();
    let list = works(gpu.profile().class, Extent::Quick, &Sizes::default()).unwrap_or_else(|e| panic!("{e}"));
    for work in &list {
        let name = format!("{} {} {}", work.name(), work.sizes(), work.pass().name());
        // Made when it is asked for first: a filter leaves most works out.
        let mut prepared = None;
        criterion.bench_function(&name, |bencher| {
            let prepared = prepared.get_or_insert_with(|| {
                Prepared::new(&gpu, work, &settings).unwrap_or_else(|e| panic!("{name}: {e}"))
            });
            bencher.iter_custom(|repetitions| {
                prepared.run(repetitions).unwrap_or_else(|e| panic!("{name}: {e}"))
            });
        });
    }
    criterion.final_summary();
}
