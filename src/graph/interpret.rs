//! The oracle: runs a graph on the host in f64 by each op's reference. Slow, plain, and independent of plans and devices.

use super::{Derived, Graph, Role, ValueId};
use crate::{DType, Error, HostTensor, Result, Tensor64};
use std::collections::HashMap;

/// A run of a graph in f64. States keep their values from run to run.
#[derive(Clone, Debug, Default)]
pub struct Interpreter {
    given: HashMap<ValueId, Tensor64>,
    computed: HashMap<ValueId, Tensor64>,
}

impl Interpreter {
    /// An interpreter without any values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives an input or state its value.
    ///
    /// # Errors
    /// When the shape is another.
    pub fn set(&mut self, graph: &Graph, id: ValueId, value: Tensor64) -> Result<()> {
        let v = graph.value(id);
        if v.ty.shape != value.shape {
            return Err(Error::shape("interpreter", v.name.clone(), &v.ty.shape, &value.shape));
        }
        self.given.insert(id, value);
        Ok(())
    }

    /// The value of an input or state, or of a computed value after [`Interpreter::run`].
    ///
    /// # Errors
    /// When it has no value yet.
    pub fn get(&self, graph: &Graph, id: ValueId) -> Result<Tensor64> {
        let v = graph.value(id);
        let missing = || Error::Input(format!("{} has no value", v.name));
        match &v.role {
            Role::Constant(t) => Ok(t.to_f64()),
            Role::View => {
                let alias = v.alias.ok_or_else(missing)?;
                let whole = self.given.get(&alias.of).ok_or_else(missing)?;
                let n = v.ty.shape.elements();
                Ok(Tensor64::new(v.ty.shape.clone(), whole.data[alias.start..alias.start + n].to_vec()))
            }
            Role::Input(Some(Derived::Argsort(ids))) => {
                let ids = self.given.get(ids).ok_or_else(missing)?;
                let order = argsort(&ids.data.iter().map(|&x| x as u32).collect::<Vec<_>>());
                Ok(Tensor64::new(v.ty.shape.clone(), order.into_iter().map(f64::from).collect()))
            }
            Role::Input(None) | Role::State => self.given.get(&id).cloned().ok_or_else(missing),
            Role::Computed { .. } => self.computed.get(&id).cloned().ok_or_else(missing),
        }
    }

    /// Runs all nodes in order. States that were never set are zero.
    ///
    /// # Errors
    /// When an input has no value.
    pub fn run(&mut self, graph: &Graph) -> Result<()> {
        for id in graph.ids() {
            if matches!(graph.value(id).role, Role::State) {
                let shape = graph.value(id).ty.shape.clone();
                self.given.entry(id).or_insert_with(|| Tensor64::zeros(shape));
            }
        }
        self.computed.clear();
        for node in graph.nodes() {
            let inputs = node.inputs.iter().map(|&i| self.get(graph, i)).collect::<Result<Vec<_>>>()?;
            let mut results = node.op.reference(&inputs.iter().collect::<Vec<_>>()).into_iter();
            for &output in &node.outputs {
                let ty = &graph.value(output).ty;
                match results.next() {
                    Some(r) if r.shape == ty.shape => self.computed.insert(output, r),
                    r => {
                        let got = r.map_or("nothing".to_string(), |r| r.shape.to_string());
                        return Err(Error::shape(
                            "reference",
                            graph.value(output).name.clone(),
                            &ty.shape,
                            got,
                        ));
                    }
                };
            }
            for (i, new) in node.op.updates().into_iter().zip(results) {
                let (root, start) = graph.resolve(node.inputs[i]);
                if let Some(state) = self.given.get_mut(&root) {
                    state.data[start..start + new.data.len()].copy_from_slice(&new.data);
                }
            }
        }
        Ok(())
    }
}

/// The indices of `ids`, sorted by id and then by index.
pub fn argsort(ids: &[u32]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|&i| (ids[i as usize], i));
    order
}

/// A tensor in f64 as the device would hold it.
pub fn to_host(dtype: DType, t: &Tensor64) -> HostTensor {
    match dtype {
        DType::F32 => HostTensor::f32(t.shape.clone(), t.data.iter().map(|&x| x as f32).collect()),
        DType::F16 => {
            HostTensor::f16(t.shape.clone(), t.data.iter().map(|&x| half::f16::from_f64(x)).collect())
        }
        DType::U32 => HostTensor::u32(t.shape.clone(), t.data.iter().map(|&x| x as u32).collect()),
    }
}
