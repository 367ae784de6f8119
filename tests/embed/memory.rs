//! Memory: none left, and none that grows.

use super::*;

/// Set where the test below runs once more, with a bound on its addresses.
const BOUNDED: &str = "WGFORMER_TEST_BOUNDED";

#[test]
fn out_of_memory_is_told_and_survived() {
    // Buffers fail once they would take more than a hundredth of what the driver says there is.
    let thresholds = wgpu::MemoryBudgetThresholds { for_resource_creation: Some(1), for_device_loss: None };
    let adapter = adapter_with(thresholds);
    let gpu = gpu_on(&adapter, gpu::required_features(&adapter), adapter.limits());
    let bytes = gpu.profile().max_buffer_bytes / 4 * 4;
    let mut kept = Vec::new();
    let error = (0..256).find_map(|i| {
        let (g, _, y) = small(64);
        let mut plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
        plan.buffers.iter_mut().for_each(|b| b.bytes = bytes);
        gpu.executor(plan, &Memory::new(&gpu)).map(|e| kept.push((i, e))).err()
    });
    match error {
        Some(error) => {
            assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
            assert!(matches!(error, Error::OutOfMemory { bytes: told, .. } if told == bytes));
        }
        // It hands out memory that is not there, unless the process may have no more addresses either.
        None => {
            assert_eq!(adapter.get_info().driver, "llvmpipe");
            assert!(std::env::var_os(BOUNDED).is_none(), "no error with 8 GB of addresses");
            let mut again = std::process::Command::new("sh");
            again.args(["-c", "ulimit -v 8000000 && exec \"$0\" \"$@\""]);
            again.arg(std::env::current_exe().unwrap());
            again.args(["--exact", "memory::out_of_memory_is_told_and_survived"]).env(BOUNDED, "1");
            assert!(again.status().unwrap().success());
        }
    }
    drop(kept);
    gpu.wait().unwrap();
    assert!(!gpu.is_lost());
    let (mut e, y) = ready(&gpu, 64);
    e.run().unwrap();
    assert_eq!(values(&e.read(y).unwrap()), doubled(64));
}

/// What the allocator has given out, by wgpu's own account where it has one.
fn taken(gpu: &Gpu) -> (u64, Option<u64>) {
    gpu.wait().unwrap();
    let report = gpu.device().generate_allocator_report();
    (gpu.allocations().live_bytes, report.map(|r| r.total_allocated_bytes))
}

#[test]
fn nothing_grows() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let (g, x, y) = small(256);
    let round = |e: &mut Executor| {
        e.write(x, &floats(256)).unwrap();
        e.run().unwrap();
        e.run_and_fetch().unwrap().wait().unwrap();
        e.read(y).unwrap();
        drop(e.run_async());
    };
    let plan = Plan::new(&g, &[y], gpu.profile()).unwrap();
    let mut e = gpu.executor(plan.clone(), &memory).unwrap();
    (0..10).for_each(|_| round(&mut e));
    let steady = taken(&gpu);
    (0..1000).for_each(|_| round(&mut e));
    assert_eq!(taken(&gpu), steady, "by steps");
    for _ in 0..100 {
        let mut other = gpu.executor(plan.clone(), &memory).unwrap();
        round(&mut other);
    }
    assert_eq!(taken(&gpu), steady, "by executors");
    assert_eq!(gpu.compile_stats().pipelines, 2);
}
