//! The model: functions that add nodes to a graph, and the parameters they name. Nothing here knows a device.

mod config;
mod layers;
mod params;
mod transformer;

pub use crate::ids::{BatchShape, PAD};
pub use config::{NormPlacement, PRESETS, Positions, Precision, TransformerConfig, Tying};
pub use layers::{Builder, Stream};
pub use params::{Init, Parameter, ParameterLayout, Parameters, page_name};
pub use transformer::{DecodeGraph, EncodeGraph, ForwardGraph, LossGraph, Objective, Optimizer, Transformer};
