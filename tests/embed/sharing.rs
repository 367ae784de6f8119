//! One encoder, one set of buffers: the host's and ours.

use super::*;

#[test]
fn between_two_passes_of_the_host() {
    let gpu = hosts();
    let host = Pass::new(gpu.device());
    let n = 100;
    let (g, x, y) = small(n);
    let memory = Memory::new(&gpu);
    memory.write("b", &HostTensor::f32([n], vec![100.0; n])).unwrap();
    let mut e = executor(&gpu, &memory, &g, &[y]);
    // Both are parts of larger buffers, from byte 256 on.
    let (before, after) = (filled(&gpu, &vec![3.0; 64 + n]), filled(&gpu, &vec![-1.0; 64 + n + 28]));
    e.bind_input(x, before.slice(256..)).unwrap();
    e.bind_output(y, after.slice(256..)).unwrap();
    let allocated = gpu.allocations();
    for round in 0..3 {
        gpu.queue().write_buffer(&before, 0, bytemuck::cast_slice(&vec![3.0 + round as f32; 64 + n]));
        gpu.queue().write_buffer(&after, 0, bytemuck::cast_slice(&vec![-1.0f32; 64 + n + 28]));
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        host.record(gpu.device(), &mut encoder, &before);
        e.encode(&mut encoder).unwrap();
        host.record(gpu.device(), &mut encoder, &after);
        gpu.queue().submit([encoder.finish()]);
        // 2 (2 (2 x + 1) + 100) + 1, and what is no output has seen the host's passes alone.
        let want = 2.0 * (2.0 * (2.0 * (3.0 + round as f32) + 1.0) + 100.0) + 1.0;
        let found = contents(&gpu, &after);
        assert!(found[..64].iter().chain(&found[64 + n..]).all(|&v| v == -1.0), "{found:?}");
        assert!(found[64..64 + n].iter().all(|&v| v == want), "{want}: {found:?}");
        assert!(contents(&gpu, &before).iter().all(|&v| v == 2.0 * (3.0 + round as f32) + 1.0));
    }
    assert_eq!(gpu.allocations(), allocated, "nothing was made for it");
}

#[test]
fn outputs_are_read_after_the_hosts_submission() {
    let gpu = hosts();
    let (mut e, y) = ready(&gpu, 50);
    let mut encoder = gpu.device().create_command_encoder(&Default::default());
    e.encode(&mut encoder).unwrap();
    assert_eq!(values(&e.read(y).unwrap()), vec![0.0; 50], "nothing is submitted");
    gpu.queue().submit([encoder.finish()]);
    assert_eq!(values(&e.read(y).unwrap()), doubled(50));
    assert_eq!(values(&drive(&gpu, e.read_async(y).unwrap()).unwrap()), doubled(50));
    drive(&gpu, gpu.submitted()).unwrap();
}

#[test]
fn attention_in_the_hosts_buffers_has_the_bits_of_ours() {
    let gpu = hosts();
    let (rows, width) = (24, 32);
    let mut g = Graph::new();
    let packed = g.input("qkv", TensorType::f32([2, rows / 2, 3 * width]));
    let out = attention(&mut g, Attention::new(4), AttentionInputs::new(Packing::Qkv(packed))).unwrap();
    let data: Vec<f32> = (0..rows * 3 * width).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let mut ours = executor(&gpu, &Memory::new(&gpu), &g, &[out]);
    ours.write(packed, &HostTensor::f32([2, rows / 2, 3 * width], data.clone())).unwrap();
    ours.run().unwrap();
    let mut theirs = executor(&gpu, &Memory::new(&gpu), &g, &[out]);
    let (from, to) = (filled(&gpu, &data), buffer(&gpu, rows * width, ALL));
    theirs.bind_input(packed, from.slice(..)).unwrap();
    theirs.bind_output(out, to.slice(..)).unwrap();
    theirs.run().unwrap();
    let want = values(&ours.read(out).unwrap());
    assert!(want.iter().any(|&v| v != 0.0));
    assert_eq!(contents(&gpu, &to), want);
    // What is bound is also what is fetched, followed and kept apart from what is bound next.
    assert_eq!(values(&theirs.run_and_fetch().unwrap().wait().unwrap()[0]), want);
    assert!(theirs.verify(&g).unwrap().troubles.is_empty());
    let next = buffer(&gpu, rows * width, ALL);
    theirs.bind_output(out, next.slice(..)).unwrap();
    gpu.queue().write_buffer(&from, 0, bytemuck::cast_slice(&vec![0.0f32; data.len()]));
    theirs.run().unwrap();
    assert_eq!(contents(&gpu, &next), vec![0.0; rows * width]);
    assert_eq!(contents(&gpu, &to), want);
}

#[test]
fn writing_goes_into_the_hosts_buffer() {
    let gpu = hosts();
    let (g, x, y) = small(10);
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[y]);
    let from = filled(&gpu, &[0.0; 10]);
    e.bind_input(x, from.slice(..)).unwrap();
    e.write(x, &floats(10)).unwrap();
    e.run().unwrap();
    assert_eq!(contents(&gpu, &from), values(&floats(10)));
    assert_eq!(values(&e.read(y).unwrap()), doubled(10));
}

#[test]
fn states_live_in_the_hosts_buffer() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let kept = filled(&gpu, &(0..64 + 128).map(|i| i as f32).collect::<Vec<_>>());
    memory.adopt("page", TensorType::f32([128]), kept.slice(256..)).unwrap();
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32([64]));
    let page = g.state("page", TensorType::f32([128]));
    let view = g.view("view", page, 64, TensorType::f32([64])).unwrap();
    // Two dispatches, since none reads and writes one buffer.
    let half = elementwise::scale(&mut g, view, 0.5).unwrap();
    let sum = elementwise::add(&mut g, half, x).unwrap();
    layout::pack_into(&mut g, page, &[sum], &[0]).unwrap();
    let mut e = executor(&gpu, &memory, &g, &[sum]);
    e.write(x, &HostTensor::f32([64], vec![1000.0; 64])).unwrap();
    e.run().unwrap();
    let after = |i: u8| if i < 64 { 1064.0 + 0.5 * f32::from(i) } else { 64.0 + f32::from(i) };
    let page: Vec<f32> = (0..128).map(after).collect();
    assert_eq!(contents(&gpu, &kept)[64..], page);
    assert_eq!(values(&memory.read("page").unwrap()), page);
    assert_eq!(values(&drive(&gpu, memory.read_async("page").unwrap()).unwrap()), page);
    let again = memory.adopt("page", TensorType::f32([128]), kept.slice(256..)).unwrap_err();
    assert!(again.to_string().starts_with("page: exists already"), "{again}");
}

#[test]
fn buffers_that_cannot_be_bound_are_named() {
    let gpu = hosts();
    let memory = Memory::new(&gpu);
    let (g, x, y) = reading_twice(100);
    let mut e = executor(&gpu, &memory, &g, &[y]);
    let large = buffer(&gpu, 1000, ALL);
    let uniform = buffer(&gpu, 1000, wgpu::BufferUsages::UNIFORM);
    let silent = buffer(&gpu, 1000, wgpu::BufferUsages::STORAGE);
    let mut ids = Graph::new();
    let symbols = ids.input("symbols", TensorType::u32([100]));
    let order = ids.derived(Derived::Argsort(symbols));
    let mut sorting = executor(&gpu, &memory, &ids, &[order]);
    let (a, _, c) = small(64);
    let mut with_state = executor(&gpu, &memory, &a, &[c]);
    let mut kept = Graph::new();
    let state = kept.state("kept", TensorType::f32([64]));
    let states = executor(&gpu, &memory, &kept, &[state]).bind_output(state, large.slice(..)).unwrap_err();
    let mut parts = Graph::new();
    let whole = parts.input("whole", TensorType::f32([128, 64]));
    let whole = elementwise::scale(&mut parts, whole, 2.0).unwrap();
    let half = layout::split_rows(&mut parts, whole, &[64, 64]).unwrap()[1];
    let part = executor(&gpu, &memory, &parts, &[half]).bind_output(half, large.slice(..)).unwrap_err();
    let cases: [(Error, &str); 11] = [
        (e.bind_input(x, uniform.slice(..)).unwrap_err(), "x: the host's buffer needs the usage STORAGE"),
        (e.bind_input(x, large.slice(64..)).unwrap_err(), "from byte 64, which is no multiple of 256"),
        (
            e.bind_input(x, large.slice(..396)).unwrap_err(),
            "has 396 bytes from byte 0 on, and 400 are needed",
        ),
        (e.bind_output(y, large.slice(3840..)).unwrap_err(), "has 160 bytes from byte 3840 on"),
        (e.bind_input(y, large.slice(..)).unwrap_err(), "value 2 is no input of this plan"),
        (e.bind_output(x, large.slice(..)).unwrap_err(), "value 0 is no output of this plan"),
        (sorting.bind_input(symbols, large.slice(..)).unwrap_err(), "symbols is sorted on the host"),
        (states, "it is a state: let the memory adopt it"),
        (part, "it is a part of another value"),
        (
            {
                e.bind_input(x, large.slice(..)).unwrap();
                e.bind_output(y, large.slice(512..)).unwrap_err()
            },
            "the host's buffer also has x, and elementwise/binary reads one and writes the other",
        ),
        (
            {
                let (_, x, y) = small(64);
                with_state.bind_input(x, silent.slice(..)).unwrap();
                with_state.bind_output(y, silent.slice(..)).unwrap_err()
            },
            "at the same bytes, and one of them is written",
        ),
    ];
    for (error, part) in cases {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    // No dispatch of this plan reads x and writes y, so in other parts both may be in one buffer.
    let (_, x, y) = small(64);
    with_state.bind_output(y, silent.slice(512..)).unwrap();
    with_state.run().unwrap();
    let unread = with_state.read(y).unwrap_err();
    assert!(unread.to_string().contains("COPY_SRC"), "{unread}");
    let unwritten = with_state.write(x, &floats(64)).unwrap_err();
    assert!(unwritten.to_string().contains("COPY_DST"), "{unwritten}");
    // A refusal changes nothing.
    gpu.queue().write_buffer(&large, 0, bytemuck::cast_slice(&values(&floats(100))));
    e.run().unwrap();
    assert_eq!(values(&e.read(y_of(&e)).unwrap())[99], 3.0 * 46.5);
}

/// The one output of a plan.
fn y_of(e: &Executor) -> ValueId {
    e.plan().outputs[0].value
}
