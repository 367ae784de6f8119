//! Reverse-mode differentiation: appends, for each node from the last to the first, the nodes that its op's gradient
//! asks for. Fan-in is summed by `add` nodes, the one op that is named here.

use super::{Graph, Op, Role, ValueId};
use crate::ops::elementwise;
use crate::{Error, Result};
use std::sync::Arc;

impl Graph {
    /// Appends the nodes that compute the gradients of `wrt`, given for some values the gradients that come from
    /// outside (`seeds`: a value and the gradient of the loss by it). `None` where no path leads from a value to a seed.
    ///
    /// # Errors
    /// When an op on the way has no gradient, or a seed has another shape than its value.
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
        for n in (0..node_count).rev() {
            let node = self.nodes[n].clone();
            let d_outputs: Vec<Option<ValueId>> = node.outputs.iter().map(|o| gradients[o.index()]).collect();
            if d_outputs.iter().all(Option::is_none) || !node.inputs.iter().any(|i| depends[i.index()]) {
                continue;
            }
            let op: Arc<dyn Op> = node.op.clone();
            let saved = std::mem::replace(&mut self.scope, vec![format!("{}.backward", node.scope)]);
            let d_inputs = op.gradient(self, &node, &d_outputs);
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
        Ok(wrt.iter().map(|id| gradients[id.index()]).collect())
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
