//! Before there is a device, and devices that can do little.

use super::*;

/// A training step of the least model.
fn training(profile: &DeviceProfile) -> Result<Plan, Error> {
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let io = model().loss_graph(batch(0).shape, &Objective::default(), Some(&optimizer))?;
    Plan::new(&io.graph, &io.outputs(), profile)
}

/// The losses of a few steps.
fn losses(gpu: &Gpu) -> Vec<f64> {
    let mut trainer = trainer(gpu);
    (0..3).map(|step| trainer.step(&batch(step)).unwrap().wait().unwrap().loss).collect()
}

#[test]
fn a_device_made_for_a_plan_runs_it() {
    let adapter = adapter();
    let profile = gpu::profile_of(&adapter);
    assert_eq!(profile, *hosts().profile());
    let features = gpu::required_features(&adapter);
    let plan = training(&profile).unwrap();
    let limits = gpu::required_limits(&adapter, &plan).unwrap();
    let gpu = gpu_on(&adapter, features, limits.clone());
    assert_eq!(*gpu.profile(), gpu::profile_with(&adapter, features, &limits));
    let need = |limit| plan.needs().into_iter().find(|n| n.limit == limit).unwrap().needed;
    let groups: u64 = need(wgformer::Limit::StorageBuffers);
    assert_eq!(
        u64::from(limits.max_storage_buffers_per_shader_stage),
        groups.max(4),
        "no more than it needs"
    );
    let mut e = gpu.executor(plan, &Memory::new(&gpu)).unwrap();
    for port in e.plan().inputs.clone() {
        let n = port.ty.shape.elements();
        let tensor = match port.ty.dtype {
            wgformer::DType::F32 => HostTensor::f32(port.ty.shape, vec![0.5; n]),
            wgformer::DType::F16 => unreachable!("the plan is one of 32-bit floats"),
            wgformer::DType::U32 => HostTensor::u32(port.ty.shape, vec![4; n]),
        };
        e.write(port.value, &tensor).unwrap();
    }
    let outputs = e.run_and_fetch().unwrap().wait().unwrap();
    // Without parameters every symbol is as likely: ln 12.
    assert!((values(&outputs[0])[0] - 12f32.ln()).abs() < 1e-4, "{outputs:?}");
}

#[test]
fn a_plan_that_the_adapter_cannot_run_is_refused() {
    let adapter = adapter();
    let endless = DeviceProfile {
        max_buffer_bytes: u64::MAX,
        max_binding_bytes: u64::MAX,
        ..gpu::profile_of(&adapter)
    };
    let (g, _, y) = small(1 << 31);
    let plan = Plan::new(&g, &[y], &endless).unwrap();
    for error in [gpu::required_limits(&adapter, &plan).unwrap_err(), {
        let gpu = hosts();
        gpu.executor(plan, &Memory::new(&gpu)).unwrap_err()
    }] {
        let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
        assert_eq!((limit, needed, tensor.as_str()), ("max_buffer_size", 1 << 33, "x"));
        assert!(allowed < needed);
    }
}

#[test]
fn a_weak_device_trains() {
    let adapter = adapter();
    // WebGPU's least, but for storage buffers, of which attention binds eight.
    let limits =
        wgpu::Limits { max_storage_buffers_per_shader_stage: 8, ..wgpu::Limits::downlevel_defaults() };
    let weak = gpu_on(&adapter, wgpu::Features::empty(), limits.clone());
    assert!(!weak.profile().subgroups);
    assert_eq!(*weak.profile(), gpu::profile_with(&adapter, wgpu::Features::empty(), &limits));
    for (a, b) in losses(&weak).into_iter().zip(losses(&hosts())) {
        assert!((a - b).abs() < 1e-4, "{a} instead of {b}");
    }
    // What is too large for it names itself.
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([1 << 26]));
    let y = elementwise::scale(&mut g, x, 2.0).unwrap();
    let error = Plan::new(&g, &[y], weak.profile()).unwrap_err();
    let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
    assert_eq!((limit, needed, allowed), ("max_storage_buffer_binding_size", 1 << 28, 1 << 27));
    assert!(tensor.contains("67108864"), "{tensor}");
}

#[test]
fn the_least_device_says_what_it_lacks() {
    let adapter = adapter();
    let least = gpu_on(&adapter, wgpu::Features::empty(), wgpu::Limits::downlevel_defaults());
    let error = training(least.profile()).unwrap_err();
    let Error::Limit { limit, needed, allowed, tensor } = error else { panic!("{error}") };
    assert_eq!((limit, allowed), ("max_storage_buffers_per_shader_stage", 4));
    assert!((5..=8).contains(&needed) && tensor.contains('/'), "{needed} {tensor}");
    // What binds no more than four runs: w = w / 2 + x, twice.
    let gpu = least;
    let mut g = Graph::new();
    let (x, w) = (g.input("x", TensorType::f32([256])), g.state("w", TensorType::f32([256])));
    let half = elementwise::scale(&mut g, w, 0.5).unwrap();
    let next = elementwise::add(&mut g, half, x).unwrap();
    layout::pack_into(&mut g, w, &[next], &[0]).unwrap();
    let memory = Memory::new(&gpu);
    let mut e = executor(&gpu, &memory, &g, &[next]);
    e.write(x, &floats(256)).unwrap();
    (0..2).for_each(|_| e.run().unwrap());
    let want: Vec<f32> = values(&floats(256)).iter().map(|x| 1.5 * x).collect();
    assert_eq!(values(&memory.read("w").unwrap()), want);
}

#[test]
fn every_family_runs_here() {
    let adapter = adapter();
    let weak = gpu_on(&adapter, wgpu::Features::empty(), wgpu::Limits::downlevel_defaults());
    for found in own().check() {
        assert!(found.problem.is_none() && !found.chosen.is_empty(), "{found}");
        assert!(FAMILIES.iter().any(|f| f.name == found.family), "{found}");
    }
    let weak = weak.check();
    assert!(weak.iter().any(|f| f.family == "attention" && f.problem.is_some()), "{weak:?}");
    assert!(weak.iter().any(|f| f.family == "elementwise" && f.problem.is_none()), "{weak:?}");
}
