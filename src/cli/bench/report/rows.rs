//! The whole table, and what has no time.

use super::Device;
use super::chart::{escape, number};
use crate::cli::output::{count, interval};
use std::fmt::Write;
use wgformer::bench::{Clock, Pass, Row, Status};

const HEAD: [(&str, bool); 13] = [
    ("name", false),
    ("shape", false),
    ("pass", false),
    ("type", false),
    ("adapter", false),
    ("median [interval]", true),
    ("GFLOP/s", true),
    ("GB/s", true),
    ("tokens/s", true),
    ("of ceiling", true),
    ("clock", false),
    ("status", false),
    ("kernels", false),
];

/// Every row of every device.
pub fn table(devices: &[Device]) -> String {
    let mut html = String::from("<div class=\"scroll tall\"><table class=\"rows\">\n<thead><tr>");
    for (name, right) in HEAD {
        // Writing to a String cannot fail.
        let _ = write!(html, "<th scope=\"col\"{}>{name}</th>", if right { " class=\"num\"" } else { "" });
    }
    html += "</tr></thead>\n<tbody>\n";
    for device in devices {
        for row in &device.rows {
            html += &line(device, row);
        }
    }
    html + "</tbody>\n</table></div>\n"
}

fn line(device: &Device, row: &Row) -> String {
    let pass = match row.pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
        Pass::Step => "step",
    };
    let status = match row.status {
        Status::Ok => row.verified.as_ref().map_or("not verified".to_string(), |v| {
            let part = if v.elements < v.of {
                format!("{} of {} elements, ", v.elements, v.of)
            } else {
                String::new()
            };
            format!("ok <small>{part}error {} % of the bound</small>", number(v.worst * 100.0))
        }),
        Status::Wrong | Status::Skipped => {
            let reason = escape(row.reason.as_deref().unwrap_or("no reason given"));
            format!("<b class=\"{0}\">{0}</b> <small>{reason}</small>", word(row.status))
        }
    };
    let none = || "\u{2013}".to_string();
    let of = |value: Option<f64>| value.map_or_else(none, number);
    let time = row.time.as_ref();
    let kernels: Vec<String> = row
        .kernels
        .iter()
        .map(|kernel| format!("{} \u{d7}{}", escape(&kernel.name), kernel.dispatches))
        .collect();
    let cells: [String; 13] = [
        escape(&row.name),
        escape(&row.sizes()),
        pass.to_string(),
        escape(&row.dtype),
        escape(&device.label),
        time.map_or_else(none, |t| interval(t.median_ns, t.interval_ns)),
        of(row.gflop_s()),
        of(row.gb_s()),
        of(row.tokens_s()),
        row.share(&device.adapter.ceilings).map_or_else(none, |share| format!("{} %", number(share * 100.0))),
        time.map_or_else(none, |t| match t.clock {
            Clock::Device => "device".to_string(),
            Clock::Host => "host".to_string(),
        }),
        status,
        kernels.join("<br>"),
    ];
    let mut html = String::from("<tr>");
    for (cell, (name, right)) in cells.iter().zip(HEAD) {
        let class = match (name, right) {
            (_, true) => " class=\"num\"",
            ("status" | "kernels", _) => " class=\"wide\"",
            _ => "",
        };
        let _ = write!(html, "<td{class}>{cell}</td>");
    }
    html + "</tr>\n"
}

/// The rows without a time, the wrong ones first; nothing where there are none.
pub fn failures(devices: &[Device]) -> String {
    let mut html = String::new();
    for status in [Status::Wrong, Status::Skipped] {
        let rows: Vec<String> = devices
            .iter()
            .flat_map(|device| device.rows.iter().map(move |row| (device, row)))
            .filter(|(_, row)| row.status == status)
            .map(|(device, row)| {
                let reason = row.reason.as_deref().unwrap_or("no reason given");
                format!("<li>{} on {}: {}</li>\n", escape(&row.key()), escape(&device.label), escape(reason))
            })
            .collect();
        if !rows.is_empty() {
            // Wrong results are to be seen at once; what was skipped may be a long list.
            let open = if status == Status::Wrong { " open" } else { "" };
            let name = word(status);
            let _ = write!(
                html,
                "<details class=\"box {name}\"{open}><summary>{} {name}</summary><ul>\n{}</ul></details>\n",
                count(rows.len(), "row"),
                rows.concat()
            );
        }
    }
    html
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Wrong => "wrong",
        Status::Skipped => "skipped",
    }
}
