//! The page: what is on it, in which order.

use super::chart::{escape, number};
use super::{Device, devices, families, lengths, roofline, rows};
use crate::cli::output::count;

/// The page's style: colours for light and dark, and nothing that is loaded from elsewhere.
const STYLE: &str = include_str!("style.css");

/// The whole HTML file.
pub fn page(all: &[Device]) -> String {
    let families = families(all);
    let names: Vec<String> = all.iter().map(|device| escape(&device.label)).collect();
    let names = names.join(", ");
    let cards: String = all.iter().map(card).collect();
    let mut body = format!(
        "<header><h1>wgformer benchmark</h1><p>{names}</p></header>\n<section class=\"cards\">\n{cards}</section>\n{}",
        rows::failures(all)
    );
    let rooflines: String = all.iter().filter_map(|device| roofline::roofline(device, &families)).collect();
    body += &section(
        "Rooflines",
        "Each point is a row, at the speed of its median. The slanted line is what memory allows, the level one what \
         arithmetic allows; works that stay in caches may be above the first. Point at a row for its name.",
        &grid(&rooflines),
    );
    body += &section(
        "Attention by sequence length",
        "Each line is a kind of attention; the charts of an adapter have one scale.",
        &grid(&lengths::lengths(all)),
    );
    body += &section("Adapter against adapter", "", &devices::devices(all, &families));
    body += &section(
        "All rows",
        "The interval holds the time of an undisturbed repetition with 95 % confidence; on a busy machine the median \
         is above it. The share of the ceiling is the time that the operations or the bytes need at best, over the \
         median.",
        &rows::table(all),
    );
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>wgformer benchmark: {names}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn grid(figures: &str) -> String {
    if figures.is_empty() { String::new() } else { format!("<div class=\"grid\">\n{figures}</div>\n") }
}

/// A section, if there is something in it.
fn section(title: &str, text: &str, content: &str) -> String {
    if content.is_empty() {
        return String::new();
    }
    let text = if text.is_empty() { String::new() } else { format!("<p>{}</p>\n", escape(text)) };
    format!("<section>\n<h2>{}</h2>\n{text}{content}</section>\n", escape(title))
}

/// What an adapter is, and with what it was measured.
fn card(device: &Device) -> String {
    let (adapter, e) = (device.adapter, device.environment);
    let ceiling = |value: f64, unit: &str| match value > 0.0 {
        true => format!("{} {unit}", number(value)),
        false => "not measured".to_string(),
    };
    let [low, high] = adapter.subgroup_sizes;
    let features = if adapter.features.is_empty() { "none".to_string() } else { adapter.features.join(", ") };
    let facts = [
        ("driver", format!("{} {}", adapter.driver, adapter.driver_version)),
        ("interface", format!("{}, {}", adapter.backend, adapter.class)),
        ("sub-groups", if low == high { low.to_string() } else { format!("{low} to {high}") }),
        ("features", features),
        ("copy", ceiling(adapter.ceilings.copy_gb_s, "GB/s")),
        ("multiply-add", ceiling(adapter.ceilings.fma_gflop_s, "GFLOP/s")),
        ("system", format!("{}, {}", e.system, count(e.threads, "thread"))),
        ("wgformer", format!("{}, {}", e.version, e.commit.as_deref().unwrap_or("no commit"))),
        ("started", e.started.clone()),
        ("rows", device.rows.len().to_string()),
    ];
    let facts: String =
        facts.iter().map(|(name, fact)| format!("<dt>{name}</dt><dd>{}</dd>", escape(fact.trim()))).collect();
    format!("<article class=\"box\"><h2>{}</h2><dl>{facts}</dl></article>\n", escape(&device.label))
}
