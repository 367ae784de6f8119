//! Several devices, and their end.

use super::*;

#[test]
fn two_devices_on_two_threads_give_equal_bits() {
    let run = || {
        let gpu = own();
        let mut trainer = trainer(&gpu);
        train(&mut trainer, 0..3);
        trainer.state().unwrap()
    };
    let (first, second) = std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        let [first, second] = threads.map(|t| t.join().expect("a thread without a panic"));
        (first, second)
    });
    same(&first, &second);
}

fn same(first: &State, second: &State) {
    assert!(!first.is_empty() && first.len() == second.len());
    for ((name, a), (other, b)) in first.iter().zip(second) {
        assert_eq!(name, other);
        assert!(a.bytes() == b.bytes(), "{name} differs");
    }
}

#[test]
fn a_training_goes_on_after_the_device_was_lost() {
    let (k, all) = (2, 4);
    let saved = [own(), hosts()].map(|gpu| {
        let mut first = trainer(&gpu);
        train(&mut first, 0..k);
        let saved = first.state().unwrap();
        // A step is under way when it happens.
        let under_way = first.step(&batch(k)).unwrap();
        gpu.device().destroy();
        if let Err(error) = under_way.wait() {
            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{error}");
        }
        is_lost(first.step(&batch(k)).and_then(|s| s.wait()));
        is_lost(gpu.wait());
        is_lost(first.state());
        is_lost(first.prepare(&[BatchShape { rows: 2, source_len: 8, target_len: 8 }]));
        saved
    });
    let new = own();
    let mut undisturbed = trainer(&new);
    train(&mut undisturbed, 0..all);
    for saved in saved {
        let mut second = trainer(&new);
        second.restore(k.into(), &saved.into_iter().collect::<HashMap<_, _>>()).unwrap();
        train(&mut second, k..all);
        same(&second.state().unwrap(), &undisturbed.state().unwrap());
    }
}

#[test]
fn nothing_hangs_or_panics_on_a_destroyed_device() {
    for gpu in [own(), hosts()] {
        let (mut e, y) = ready(&gpu, 64);
        let under_way = e.run_and_fetch().unwrap();
        let running = e.run_async();
        let reading = e.read_async(y).unwrap();
        gpu.device().destroy();
        // What was under way may have ended before.
        for kind in
            [drive(&gpu, under_way).map(|_| ()), drive(&gpu, running), drive(&gpu, reading).map(|_| ())]
        {
            assert!(!matches!(&kind, Err(e) if e.kind() != ErrorKind::DeviceLost), "{kind:?}");
        }
        is_lost(drive(&gpu, e.run_async()));
        is_lost(e.read_async(y));
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        is_lost(e.encode(&mut encoder));
        is_lost(e.profile());
        is_lost(e.snapshot());
        is_lost(Memory::new(&gpu).write("b", &floats(4)));
        assert!(gpu.is_lost());
    }
}

#[test]
fn no_handler_of_the_host_is_bothered() {
    let gpu = hosts();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let cell = heard.clone();
    gpu.device()
        .on_uncaptured_error(Arc::new(move |e: wgpu::Error| cell.lock().unwrap().push(e.to_string())));
    let (mut e, y) = ready(&gpu, 64);
    // The host's own scopes stay in order around ours, in futures too.
    let scope = gpu.device().push_error_scope(wgpu::ErrorFilter::Validation);
    drive(&gpu, async {
        e.run_async().await.unwrap();
        e.read_async(y).unwrap().await.unwrap();
    });
    assert!(pollster::block_on(scope.pop()).is_none());
    gpu.device().destroy();
    is_lost(e.run());
    is_lost(e.read(y));
    is_lost(gpu.wait());
    assert_eq!(*heard.lock().unwrap(), Vec::<String>::new());
}
