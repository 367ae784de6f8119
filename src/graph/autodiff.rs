//! Reverse-mode differentiation: appends, for each node from the last to the first, the nodes that its op's gradient
//! asks for. Fan-in is summed by `add` nodes, the one op that is named here.

use super::{Graph, Node, Op, Role, Value, ValueId};
use crate::ops::elementwise;
use crate::{DType, Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A range of nodes that was appended once more.
#[derive(Default)]
struct Again {
    range: Range<usize>,
    /// By the value of the first time, that of the second.
    values: HashMap<ValueId, ValueId>,
}

impl Again {
    /// A node of the first time, with what it reads and writes the second time.
    fn see(&self, node: &Node) -> Node {
        let of = |ids: &[ValueId]| ids.iter().map(|id| *self.values.get(id).unwrap_or(id)).collect();
        Node { inputs: of(&node.inputs), outputs: of(&node.outputs), ..node.clone() }
    }
}

impl Graph {
    /// Appends the nodes that compute the gradients of `wrt`, given for some values the gradients that come from
    /// outside (`seeds`: a value and the gradient of the loss by it). `None` where no path leads from a value to a seed.
    ///
    /// # Errors
    /// When an op on the way has no gradient, a value on the way has 16-bit floats, or a seed has another shape than its value.
    pub fn backward(
        &mut self,
        seeds: &[(ValueId, ValueId)],
        wrt: &[ValueId],
    ) -> Result<Vec<Option<ValueId>>> {
        let mut gradients: Vec<Option<ValueId>> = vec![None; self.values.len()];
        for &(value, gradient) in seeds {
            if self.shape(value) != self.shape(gradient) {
                let name = self.value(value).name.clone();
                return Err(Error::shape("backward", name, self.shape(value), self.shape(gradient)));
            }
            self.accumulate(&mut gradients[value.index()], gradient)?;
        }
        // Only nodes that depend on `wrt` are differentiated.
        let mut depends = vec![false; self.values.len()];
        for &id in wrt {
            depends[id.index()] = true;
        }
        let node_count = self.nodes.len();
        for node in &self.nodes {
            if node.inputs.iter().any(|i| depends[i.index()]) {
                for o in &node.outputs {
                    depends[o.index()] = true;
                }
            }
        }
        let mut again = Again::default();
        for n in (0..node_count).rev() {
            let node = self.nodes[n].clone();
            let d_outputs: Vec<Option<ValueId>> = node.outputs.iter().map(|o| gradients[o.index()]).collect();
            if d_outputs.iter().all(Option::is_none) || !node.inputs.iter().any(|i| depends[i.index()]) {
                continue;
            }
            if let Some(half) = node.inputs.iter().find(|i| self.value(**i).ty.dtype == DType::F16) {
                let v = self.value(*half);
                let problem = format!("{} is {}: only 32-bit floats have gradients", v.name, v.ty);
                return Err(Error::config("backward", problem));
            }
            let op: Arc<dyn Op> = node.op.clone();
            let recomputed = self.recomputed.iter().find(|range| range.contains(&n)).cloned();
            let seen = match recomputed {
                Some(range) => {
                    self.again(range, &mut again)?;
                    again.see(&node)
                }
                None => node.clone(),
            };
            let saved = std::mem::replace(&mut self.scope, vec![format!("{}.backward", node.scope)]);
            let d_inputs = op.gradient(self, &seen, &d_outputs);
            let result = d_inputs.and_then(|d_inputs| {
                for (&input, d) in node.inputs.iter().zip(d_inputs) {
                    if let Some(d) = d.filter(|_| depends[input.index()]) {
                        if self.shape(d) != self.shape(input) {
                            let (want, got) = (self.shape(input).clone(), self.shape(d).clone());
                            return Err(Error::shape(
                                format!("gradient of {}", op.name()),
                                "gradient",
                                want,
                                got,
                            ));
                        }
                        self.accumulate(&mut gradients[input.index()], d)?;
                    }
                }
                Ok(())
            });
            self.scope = saved;
            result?;
        }
        let found: Vec<_> = wrt.iter().map(|id| gradients[id.index()]).collect();
        self.join(node_count, &found);
        Ok(found)
    }

    /// Lets nodes do what the node before did as well, where one op does both ([`Op::followed_by`]): of the nodes from
    /// `first` on those whose input nothing else reads and nobody asked for. The node before is left without readers,
    /// so no plan has it. What it read must live on until the second: so that one comes soon after.
    fn join(&mut self, first: usize, asked: &[Option<ValueId>]) {
        const SOON: usize = 3;
        let mut readers = vec![0; self.values.len()];
        for id in self.nodes.iter().flat_map(|n| &n.inputs).chain(asked.iter().flatten()) {
            readers[id.index()] += 1;
        }
        for n in first..self.nodes.len() {
            let before = |id: ValueId| match self.value(id) {
                Value { role: Role::Computed { node, output: 0 }, alias: None, .. } if *node + SOON >= n => {
                    (readers[id.index()] == 1).then_some(*node)
                }
                _ => None,
            };
            let node = &self.nodes[n];
            let joined = node.inputs.iter().enumerate().find_map(|(i, &id)| {
                let before = &self.nodes[before(id)?];
                let op = before.op.followed_by(&*node.op, i)?;
                let others = node.inputs.iter().enumerate().filter(|(other, _)| *other != i);
                Some((op, before.inputs.iter().copied().chain(others.map(|(_, &id)| id)).collect()))
            });
            if let Some((op, inputs)) = joined {
                self.nodes[n].op = op;
                self.nodes[n].inputs = inputs;
            }
        }
    }

    /// Appends the nodes of a range once more, unless they are the last that were.
    fn again(&mut self, range: Range<usize>, again: &mut Again) -> Result<()> {
        if again.range == range {
            return Ok(());
        }
        again.values.clear();
        for n in range.clone() {
            let node = again.see(&self.nodes[n]);
            if !node.op.updates().is_empty() {
                let problem =
                    format!("changes a state, so it cannot be computed again (in {:?})", node.scope);
                return Err(Error::config(node.op.name(), problem));
            }
            let saved = std::mem::replace(&mut self.scope, vec![format!("{}.again", node.scope)]);
            let outputs = self.add_shared(node.op.clone(), &node.inputs);
            self.scope = saved;
            again.values.extend(node.outputs.into_iter().zip(outputs?));
        }
        again.range = range;
        Ok(())
    }

    fn accumulate(&mut self, sum: &mut Option<ValueId>, term: ValueId) -> Result<()> {
        *sum = Some(match *sum {
            None => term,
            Some(so_far) => elementwise::add(self, so_far, term)?,
        });
        Ok(())
    }

    /// Whether a value is known to be all ones: the gradient of the loss by itself.
    pub fn is_one(&self, id: ValueId) -> bool {
        match &self.value(id).role {
            Role::Constant(t) => t.to_f64().data.iter().all(|&x| x == 1.0),
            _ => false,
        }
    }
}
