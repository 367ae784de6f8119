//! Waiting: futures, bounded waits, their errors.

use super::*;

#[test]
fn runs_and_results_are_awaited() {
    let gpu = hosts();
    let (mut e, y) = ready(&gpu, 77);
    drive(&gpu, async {
        e.run_async().await.unwrap();
        assert_eq!(values(&e.read_async(y).unwrap().await.unwrap()), doubled(77));
        // Several under way, one of them given up.
        let first = e.run_and_fetch().unwrap();
        drop(e.run_async());
        drop(e.run_and_fetch().unwrap());
        let second = e.run_and_fetch().unwrap();
        assert_eq!(first.await.unwrap(), second.await.unwrap());
    });
    // A blocking wait elsewhere drives futures as well.
    let done = e.run_async();
    std::thread::scope(|scope| {
        scope.spawn(|| gpu.wait().unwrap());
        pollster::block_on(done).unwrap();
    });
}

#[test]
fn errors_before_the_submission_come_with_the_future() {
    let gpu = hosts();
    let (g, _, y) = small(7);
    let mut e = executor(&gpu, &Memory::new(&gpu), &g, &[y]);
    let error = pollster::block_on(e.run_async()).unwrap_err();
    assert_eq!(error.to_string(), "input x was never written; write it before a run");
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn futures_end_when_the_host_notices_a_loss() {
    let gpu = hosts();
    let (mut e, _) = slow(&gpu);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    // Nobody polls the device, so nothing but the notice wakes it.
    let mut done = loop {
        (0..5).for_each(|_| e.run().unwrap());
        let mut done = gpu.submitted();
        if Pin::new(&mut done).poll(&mut Context::from_waker(&waker)).is_pending() {
            break done;
        }
    };
    gpu.notice_lost("the host's callback said so");
    assert!(woken.0.load(Ordering::Relaxed) >= 1, "woken by the notice");
    match Pin::new(&mut done).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(result) => is_lost(result),
        Poll::Pending => panic!("still pending"),
    }
    assert!(gpu.is_lost());
    is_lost(e.run());
    is_lost(gpu.wait());
    is_lost(gpu.poll());
}

#[test]
fn waits_are_bounded() {
    let gpu = own();
    let (mut e, product) = slow(&gpu);
    gpu.set_timeout(Duration::from_nanos(1));
    // A device may be faster than the host's look at it, but not each time.
    let mut late = 0;
    for _ in 0..10 {
        (0..3).for_each(|_| e.run().unwrap());
        match e.wait() {
            Ok(()) => {}
            Err(Error::Timeout { after, .. }) => {
                assert_eq!(after, Duration::from_nanos(1));
                late += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(late > 0, "no wait was cut off");
    let error = e.run_and_fetch().and_then(|f| f.wait());
    assert!(matches!(&error, Err(e) if e.kind() == ErrorKind::Timeout) || error.is_ok());
    // It was slow, not lost.
    gpu.set_timeout(Duration::from_secs(600));
    e.wait().unwrap();
    assert_eq!(values(&e.read(product).unwrap()), vec![256.0; 256 * 256]);
}
