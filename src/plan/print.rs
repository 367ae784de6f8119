//! The text form of a plan.

use super::{BufferKind, Plan};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.steps.iter().enumerate() {
            let [x, y, z] = s.groups;
            let buffers: Vec<String> = s.bindings.iter().map(|b| b.buffer.to_string()).collect();
            writeln!(
                f,
                "{i:>5}  {:<72} groups {x}x{y}x{z}  buffers {}  {} bytes  {} FLOP",
                s.label,
                buffers.join(","),
                s.bytes,
                s.flops
            )?;
        }
        let count = |want: fn(&BufferKind) -> bool| {
            let chosen = self.buffers.iter().filter(|b| want(&b.kind));
            chosen.fold((0, 0), |(n, bytes), b| (n + 1, bytes + b.bytes))
        };
        let (slots, slot_bytes) = count(|k| matches!(k, BufferKind::Slot));
        let (states, state_bytes) = count(|k| matches!(k, BufferKind::State { .. }));
        let (inputs, input_bytes) = count(|k| matches!(k, BufferKind::Input { .. }));
        writeln!(f, "dispatches        {}", self.steps.len())?;
        writeln!(f, "kernels           {}", self.kernels.len())?;
        writeln!(f, "FLOP              {}", self.flops())?;
        writeln!(f, "slots             {slots}, {slot_bytes} bytes")?;
        writeln!(f, "states            {states}, {state_bytes} bytes")?;
        writeln!(f, "inputs            {inputs}, {input_bytes} bytes")?;
        writeln!(f, "sum of all values {} bytes", self.value_bytes)?;
        let percent = 100.0 * self.peak_bytes() as f64 / self.value_bytes.max(1) as f64;
        writeln!(f, "peak of values    {} bytes ({percent:.1} % of the sum)", self.peak_bytes())
    }
}
