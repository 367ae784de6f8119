//! Every kernel that the cases and whole models lower to.

use super::{Shared, each};
use crate::cases;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use wgformer::kernel::Kernel;
use wgformer::nn::{
    BatchShape, NormPlacement, Objective, Optimizer, Positions, Precision, Transformer, TransformerConfig,
    Tying,
};
use wgformer::ops::elementwise::Activation;
use wgformer::ops::optimizer::AdamSettings;
use wgformer::plan::Plan;
use wgformer::testing::known_profiles;
use wgformer::{DeviceProfile, Result};

/// A device to lower for, by its name.
pub type Profile = (&'static str, DeviceProfile);

/// A kernel, and where it is from.
pub struct Found {
    pub kernel: Kernel,
    /// The devices that it was lowered for.
    pub profiles: Vec<Profile>,
    /// Whether a case of the shader tests lowers to it, so that its results are compared.
    pub by_case: bool,
}

/// Something that gives plans, each for one of these devices.
type Source = Box<dyn Fn(&[Profile]) -> Result<Vec<(usize, Plan)>> + Send + Sync>;

/// All distinct kernels, in the order of their names.
pub fn kernels() -> Shared<Vec<Found>> {
    static ALL: OnceLock<Shared<Vec<Found>>> = OnceLock::new();
    ALL.get_or_init(|| lower().map(Arc::new)).clone()
}

fn lower() -> std::result::Result<Vec<Found>, Vec<String>> {
    let mut sources: Vec<(String, bool, Source)> = Vec::new();
    for (op, cases) in cases::all() {
        for case in cases {
            let name = format!("{op} {:?}", case.name);
            let plans = move |profiles: &[Profile]| {
                let (graph, outputs) = case.graph(1)?;
                let plan = |p: &Profile| Plan::new(&graph, &outputs, &p.1);
                let able = |(_, p): &(usize, &Profile)| graph.fits(&p.1);
                profiles.iter().enumerate().filter(able).map(|(i, p)| Ok((i, plan(p)?))).collect()
            };
            sources.push((name, true, Box::new(plans)));
        }
    }
    for (name, config) in models() {
        sources.push((name, false, Box::new(move |profiles| model_plans(&config, profiles))));
    }
    let all = Mutex::new(HashMap::<Kernel, Found>::new());
    let profiles = known_profiles();
    each(&sources, |(name, by_case, source)| {
        let plans = match source(&profiles) {
            Ok(plans) => plans,
            Err(e) => return vec![format!("{name}: {e}")],
        };
        for (i, plan) in plans {
            for kernel in plan.kernels {
                let mut all = all.lock().unwrap();
                let found = all.entry(kernel.clone()).or_insert_with(|| Found {
                    kernel,
                    profiles: Vec::new(),
                    by_case: false,
                });
                found.by_case |= by_case;
                if !found.profiles.iter().any(|p| p.0 == profiles[i].0) {
                    found.profiles.push(profiles[i].clone());
                }
            }
        }
        Vec::new()
    })?;
    let mut all: Vec<Found> = all.into_inner().unwrap().into_values().collect();
    all.sort_by_cached_key(|f| (f.kernel.name.clone(), format!("{:?}", f.kernel.constants)));
    Ok(all)
}

/// Models in which every setting that changes a kernel has each of its values once.
fn models() -> Vec<(String, TransformerConfig)> {
    let mut all = Vec::new();
    for preset in ["tiny", "small", "base"] {
        let mut add = |what: &str, change: &dyn Fn(&mut TransformerConfig)| {
            let mut config = TransformerConfig::preset(preset).unwrap();
            (config.source_vocabulary, config.target_vocabulary) = (8000, 8000);
            // Further layers have the same kernels as these.
            (config.encoder_layers, config.decoder_layers) = (2, 2);
            change(&mut config);
            all.push((format!("{preset} {what}"), config));
        };
        add("as it is", &|_| ());
        add("pre-norm", &|c| (c.norm, c.final_norm) = (NormPlacement::Pre, true));
        add("pre-norm without the last norm", &|c| c.norm = NormPlacement::Pre);
        for activation in [Activation::None, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            add(&format!("{activation:?}"), &|c| c.activation = activation);
        }
        for tying in [Tying::None, Tying::Embeddings, Tying::All] {
            add(&format!("tying {tying:?}"), &|c| c.tying = tying);
        }
        add("learned positions", &|c| c.positions = Positions::Learned);
        add("without dropout", &|c| (c.dropout, c.attention_dropout) = (0.0, 0.0));
        add("without biases", &|c| c.bias = false);
        add("an odd vocabulary", &|c| (c.source_vocabulary, c.target_vocabulary) = (7001, 7001));
    }
    all
}

/// Training, evaluation, encoding and decoding (the last two with 16-bit floats too), for a usual batch and for a single sentence.
fn model_plans(config: &TransformerConfig, profiles: &[Profile]) -> Result<Vec<(usize, Plan)>> {
    let model = Transformer::new(config.clone())?;
    let objective = Objective::default();
    let optimizer = Optimizer { adam: AdamSettings::transformer(), clip_norm: Some(1.0) };
    let mut plans = Vec::new();
    for (rows, source_len, target_len) in [(16, 32, 32), (1, 7, 9)] {
        let shape = BatchShape { rows, source_len, target_len };
        let training = model.loss_graph(shape, &objective, Some(&optimizer))?;
        let partial = model.loss_graph_of(shape, rows * target_len / 2, &objective, Some(&optimizer))?;
        let evaluation = model.loss_graph(shape, &objective, None)?;
        let encoding = model.encode_graph(shape)?;
        let decoding = model.decode_graph(shape, 0)?;
        let half = Transformer::with_precision(config.clone(), Precision::F16)?;
        let (encoding_f16, decoding_f16) = (half.encode_graph(shape)?, half.decode_graph(shape, 0)?);
        for (i, (_, profile)) in profiles.iter().enumerate() {
            if profile.f16 {
                plans.push((i, Plan::new(&encoding_f16.graph, &[], profile)?));
                plans.push((i, Plan::new(&decoding_f16.graph, &[decoding_f16.next], profile)?));
            }
            plans.push((i, Plan::new(&training.graph, &training.outputs(), profile)?));
            plans.push((i, Plan::new(&partial.graph, &partial.outputs(), profile)?));
            plans.push((i, Plan::new(&evaluation.graph, &evaluation.outputs(), profile)?));
            plans.push((i, Plan::new(&encoding.graph, &[], profile)?));
            plans.push((i, Plan::new(&decoding.graph, &[decoding.next], profile)?));
        }
    }
    Ok(plans)
}
