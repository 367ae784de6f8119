//! What a thread of its own makes before it is asked for.

use std::sync::mpsc::sync_channel;

/// Calls `f` with the items, in their order, of which `count` are made ahead, on another thread. When `f` ends, so does that
/// thread, whether there are more items or not.
pub fn ahead<T: Send, R>(
    count: usize,
    items: impl Iterator<Item = T> + Send,
    f: impl FnOnce(&mut dyn Iterator<Item = T>) -> R,
) -> R {
    let (give, take) = sync_channel(count);
    std::thread::scope(|scope| {
        let maker = scope.spawn(move || {
            for item in items {
                // Nobody takes it: `f` has ended.
                if give.send(item).is_err() {
                    break;
                }
            }
        });
        let mut taken = take.into_iter();
        let out = f(&mut taken);
        drop(taken);
        // That thread has told of its panic already.
        maker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn items_come_in_their_order_and_few_are_made_ahead() {
        let made = AtomicUsize::new(0);
        let items = (0..1000).inspect(|_| {
            made.fetch_add(1, Ordering::SeqCst);
        });
        let seen = ahead(2, items, |items| {
            let mut seen = Vec::new();
            for item in items {
                seen.push(item);
                // Two wait, and one more is made and not given yet.
                assert!(made.load(Ordering::SeqCst) <= seen.len() + 3);
            }
            seen
        });
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_thread_ends_with_an_error_of_who_takes() {
        let out: Result<(), usize> = ahead(2, 0.., |items| match items.nth(4) {
            Some(item) => Err(item),
            None => Ok(()),
        });
        assert_eq!(out, Err(4));
    }

    #[test]
    fn a_panic_of_the_thread_is_passed_on() {
        let items = (0..5).inspect(|&i| assert!(i < 3, "made too many"));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ahead(2, items, |items| assert_eq!(items.count(), 3))
        }));
        let panic = caught.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"made too many"));
    }
}
