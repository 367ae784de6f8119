//! Every variant of the table, forced in turn, on a handful of awkward cases: one element, primes, below and above a tile,
//! T unlike S, masks; gradients too. Which of them a device would choose by itself does not matter here.

use crate::{Outcome, Passed, Run, Test, cases};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use wgformer::DeviceProfile;
use wgformer::testing::{Case, Runner};
use wgformer::tuning::{Family, Variant};

/// Of each family the cases, by op and name. A variant runs those that it can compute.
fn few(family: Family) -> &'static [(&'static str, &'static str)] {
    match family {
        Family::MatMul => &[
            // Split in parts, with all that an epilogue has; and rows further apart than they are long.
            ("matmul", "Gelu, bias true, residual true, 35x67x1031"),
            ("matmul", "blocks of columns, not aligned NT"),
            ("matmul", "TT 65x132x72"),
            ("matmul", "NN 1x1x1"),
            ("matmul", "NN batch 20x36x8"),
        ],
        Family::Attention => &[("attention", "all, several tiles"), ("attention", "all, few keys")],
        Family::Rows => &[
            ("softmax", "softmax 9x31"),
            ("layer_norm", "after a sum, dropout Some(0.1), 301x64"),
            ("cross_entropy", "ties of 257"),
            ("argmax", "ties of 257 forbid b"),
            ("softmax", "log_softmax 3x1028"),
            ("layer_norm", "plain 4x257"),
            ("cross_entropy", "3 x 1028 smoothing 0.1"),
        ],
    }
}

/// Cases with their ops.
type Cases = Vec<(&'static str, Case)>;

/// The cases of a family.
fn cases_of(family: Family) -> &'static [(&'static str, Case)] {
    static CASES: OnceLock<Vec<(Family, Cases)>> = OnceLock::new();
    let all = CASES.get_or_init(|| {
        let chosen = |family: Family| {
            let place = |(op, case): &(&'static str, Case)| {
                few(family).iter().position(|named| *named == (*op, case.name.as_str()))
            };
            let all = cases::all().into_iter();
            let all = all.flat_map(|(op, cases)| cases.into_iter().map(move |case| (op, case)));
            let mut all: Cases = all.filter(|case| place(case).is_some()).collect();
            all.sort_by_key(place);
            all
        };
        Family::ALL.into_iter().map(|family| (family, chosen(family))).collect()
    });
    all.iter().find(|(of, _)| *of == family).map_or(&[], |(_, cases)| cases)
}

/// A variant that was forced: how many cases it ran in, or why it cannot run here.
#[derive(Clone, Debug)]
pub struct Forced {
    pub variant: &'static Variant,
    pub ran: Result<usize, String>,
}

pub fn tests() -> Vec<Test> {
    let test = |group: &str, name: String, layer, run| Test { layer, group: group.to_string(), name, run };
    let mut tests: Vec<Test> = Family::ALL
        .into_iter()
        .flat_map(Family::variants)
        .map(|variant| {
            let name = format!("{} {}", variant.family().name(), variant.name());
            test("variants", name, 2, Run::OnDevice(Box::new(move |on| forced(variant, on))))
        })
        .collect();
    let run = Run::OnHost(Box::new(|seed| every_kernel(seed).map_err(|problem| vec![problem])));
    tests.push(test("variants", "the cases have every kernel".into(), 3, run));
    tests
}

/// The cases are there, and have every kernel of their families, by its name in the table and no other.
fn every_kernel(seed: u64) -> Result<Passed, String> {
    for family in Family::ALL {
        if cases_of(family).len() < few(family).len() {
            return Err(format!("{} names cases that there are not", family.name()));
        }
        let mut found = BTreeSet::new();
        for (_, case) in cases_of(family) {
            let plan = case.plan(&DeviceProfile::portable(), seed).map_err(|e| e.to_string())?;
            let own = plan.choices.iter().filter(|choice| choice.query.family() == family);
            found.extend(own.map(|choice| choice.query.kernel()));
        }
        let named: BTreeSet<&str> = family.kernels().iter().copied().collect();
        if found != named {
            return Err(format!("{} has {named:?}, the cases {found:?}", family.name()));
        }
    }
    Ok(Passed::checks(Family::ALL.len()))
}

fn forced(variant: &'static Variant, on: &Runner) -> Outcome {
    let mut passed = Passed::default();
    if let Some(lack) = variant.lacks(on.gpu.profile()) {
        passed.forced = Some(Forced { variant, ran: Err(lack) });
        return Ok(passed);
    }
    let (mut ran, mut problems) = (0, Vec::new());
    let cases = cases_of(variant.family());
    for (op, case) in cases {
        // Where a compiler is slow, half of them; the most that there is to see in one stands first.
        if on.brief && ran >= cases.len() / 2 {
            break;
        }
        let Some(report) = case.forced(on, variant) else { continue };
        ran += 1;
        problems.extend(report.problems.iter().map(|p| format!("{op} {}: {}", case.name, p.text)));
        passed.checks += report.runs;
        passed.checked.extend(report.checked);
        for (kernel, worst) in report.kernels {
            let known = passed.kernels.entry(kernel).or_insert(0.0);
            *known = known.max(worst);
        }
    }
    passed.forced = Some(Forced { variant, ran: Ok(ran) });
    match (ran, problems.is_empty()) {
        (0, _) => Err(vec!["no case has work for it".to_string()]),
        (_, true) => Ok(passed),
        (_, false) => Err(problems),
    }
}

/// Prints which variants were forced, and why others were not.
pub fn table(forced: &[Forced]) {
    if forced.is_empty() {
        return;
    }
    let of = |family: Family| forced.iter().filter(move |f| f.variant.family() == family);
    let counts: Vec<String> = Family::ALL
        .into_iter()
        .filter(|&family| of(family).count() > 0)
        .map(|family| {
            let (ran, all) = (of(family).filter(|f| f.ran.is_ok()).count(), of(family).count());
            let cases: usize = of(family).filter_map(|f| f.ran.as_ref().ok()).sum();
            format!("{} {ran} of {all} in {cases} cases", family.name())
        })
        .collect();
    println!("variants forced in turn: {}", counts.join(", "));
    for f in forced {
        if let Err(reason) = &f.ran {
            println!("  {} {}: {reason}", f.variant.family().name(), f.variant.name());
        }
    }
}
