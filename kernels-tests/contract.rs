//! What holds between each shader and its host side, checked without a device: over every file of `shaders/`, and every
//! kernel that a case or a model lowers to for any of a list of devices.

mod collect;
mod files;
mod kernel;
mod translate;
mod wrong;

use crate::{Passed, Run, Test};
use collect::Found;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use wgformer::ops::FAMILIES;

/// The number of things checked, or the problems.
type Outcome = Result<usize, Vec<String>>;

/// The tests of this layer.
pub fn tests() -> Vec<Test> {
    let mut all = vec![
        test("files", "names and places", files::of_the_project),
        test("files", "every shader is part of a kernel, and a case reaches every entry point", || {
            let found = collect::kernels()?;
            files::reached(&files::shaders(), FAMILIES, &found)
        }),
        test("SPIR-V", "all kernels", || translate::validated(&collect::kernels()?)),
        test("wrong examples", "each is refused", wrong::refused),
    ];
    let mut families: Vec<&str> = FAMILIES.iter().map(|f| f.name).collect();
    families.retain(|name| !FAMILIES.iter().any(|f| extends(name, f.name)));
    all.extend(families.into_iter().map(|name| test(name, "all kernels", move || kernels_of(name))));
    all
}

fn test(group: &str, name: &str, check: impl Fn() -> Outcome + Send + Sync + 'static) -> Test {
    let run = Run::OnHost(Box::new(move |_| check().map(Passed::checks)));
    Test { layer: 3, group: group.to_string(), name: name.to_string(), run }
}

/// Whether a name is that of another file of the same family: `matmul_tile` of `matmul`.
fn extends(name: &str, family: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.starts_with('_'))
}

/// The part of a kernel's name before the first slash.
fn first(name: &str) -> &str {
    name.split('/').next().unwrap_or("")
}

fn kernels_of(family: &str) -> Outcome {
    let found = collect::kernels()?;
    let belongs = |name: &str| name == family || extends(name, family);
    let of_family: Vec<&Found> = found.iter().filter(|f| belongs(first(&f.kernel.name))).collect();
    each(&of_family, |f| {
        let problems = kernel::check(&f.kernel, &f.profiles, FAMILIES);
        problems.into_iter().map(|p| format!("{} for {}: {p}", f.kernel.name, f.profiles[0].0)).collect()
    })
}

/// Runs `check` on each item, on all cores; the number of items, or the problems, each once.
fn each<T: Sync>(items: &[T], check: impl Fn(&T) -> Vec<String> + Sync) -> Outcome {
    let problems = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = check(item);
                    problems.lock().unwrap().extend(found);
                }
            });
        }
    });
    let mut problems = problems.into_inner().unwrap();
    problems.sort();
    problems.dedup();
    match (items.len(), problems.is_empty()) {
        (0, _) => Err(vec!["there is nothing to check".to_string()]),
        (n, true) => Ok(n),
        _ => Err(problems),
    }
}

/// What several tests ask for, computed by the first.
type Shared<T> = Result<Arc<T>, Vec<String>>;
