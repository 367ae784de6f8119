//! A model for a program that knows of no GPU: settings in, numbers out, parameters as slices.
//!
//! ```sh
//! cargo run --release --example bytes_only
//! ```

use wgformer::nn::TransformerConfig;
use wgformer::{Result, Transformer};

fn main() -> Result<()> {
    let sizes = TransformerConfig {
        source_vocabulary: 12,
        target_vocabulary: 12,
        encoder_layers: 1,
        decoder_layers: 1,
        max_source: 16,
        max_target: 16,
        ..TransformerConfig::preset("tiny")?
    };
    let mut model = Transformer::new(sizes.clone(), 1)?;
    let (sources, targets) = ([vec![4, 5, 6], vec![7, 8]], [vec![6, 5, 4], vec![8, 7]]);
    let logits = model.forward(&sources, &targets)?;

    // Another model, of another seed, says something else until it has the same parameters.
    let mut other = Transformer::new(sizes, 2)?;
    let before = other.forward(&sources, &targets)?;
    for (name, values) in model.parameters()? {
        other.set_parameter(&name, values.as_f32(&name)?)?;
    }
    let after = other.forward(&sources, &targets)?;
    println!("logits {}: {:?}", logits.ty(), &logits.as_f32("logits")?[..4]);
    assert!(before != logits && after == logits, "parameters went astray");
    Ok(())
}
