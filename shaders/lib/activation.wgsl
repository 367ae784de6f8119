// Activations and their derivatives, over `elem`: f32 or vec4<f32>.

const ACT_NONE = 0u;
const ACT_RELU = 1u;
const ACT_GELU = 2u; // x * Phi(x), Phi by erf
const ACT_GELU_TANH = 3u; // the tanh approximation
const ACT_SILU = 4u;

// erf by Abramowitz and Stegun 7.1.26: absolute error at most 1.5e-7.
fn erf(x: elem) -> elem {
    let a = abs(x);
    let t = elem(1.0) / (elem(1.0) + 0.3275911 * a);
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(x) * (elem(1.0) - p * exp(-a * a));
}

// tanh(z) for any z: the argument is clamped, since exp overflows in some implementations.
fn tanh_clamped(z: elem) -> elem {
    return tanh(clamp(z, elem(-15.0), elem(15.0)));
}

// x, where GELU and its slope are neither 0 nor linear; so far out that they are in 32 bits, and so near that no power of it
// overflows.
fn gelu_clamped(x: elem) -> elem {
    return clamp(x, elem(-15.0), elem(15.0));
}

fn sigmoid(x: elem) -> elem {
    return elem(1.0) / (elem(1.0) + exp(-clamp(x, elem(-80.0), elem(80.0))));
}

fn activate(x: elem, kind: u32) -> elem {
    switch kind {
        case ACT_RELU: {
            return max(x, elem(0.0));
        }
        case ACT_GELU: {
            return 0.5 * x * (elem(1.0) + erf(gelu_clamped(x) * 0.70710678));
        }
        case ACT_GELU_TANH: {
            let c = gelu_clamped(x);
            return 0.5 * x * (elem(1.0) + tanh_clamped(0.79788456 * (c + 0.044715 * c * c * c)));
        }
        case ACT_SILU: {
            return x * sigmoid(x);
        }
        default: {
            return x;
        }
    }
}

// The derivative at x. ReLU's may also be taken at its result, which has the same sign.
fn activate_slope(x: elem, kind: u32) -> elem {
    switch kind {
        case ACT_RELU: {
            return select(elem(0.0), elem(1.0), x > elem(0.0));
        }
        case ACT_GELU: {
            let c = gelu_clamped(x);
            let phi = 0.39894228 * exp(-0.5 * c * c);
            return 0.5 * (elem(1.0) + erf(c * 0.70710678)) + c * phi;
        }
        case ACT_GELU_TANH: {
            let c = gelu_clamped(x);
            let t = tanh_clamped(0.79788456 * (c + 0.044715 * c * c * c));
            let dz = 0.79788456 * (elem(1.0) + 0.134145 * c * c);
            return 0.5 * (elem(1.0) + t) + 0.5 * c * (elem(1.0) - t * t) * dz;
        }
        case ACT_SILU: {
            let s = sigmoid(x);
            return s * (elem(1.0) + x * (elem(1.0) - s));
        }
        default: {
            return elem(1.0);
        }
    }
}
