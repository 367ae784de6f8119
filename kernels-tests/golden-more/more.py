"""Makes the cases of this folder with PyTorch: `python more.py [FOLDER]`.

Every case is one NAME.safetensors and an entry of index.json, as in ../golden. Inputs are rounded to 32-bit floats first;
then PyTorch computes in 64-bit floats, and what comes out is rounded to 32 bits. Masks are u8, 1 = may attend.
Needs torch and safetensors; wgformer itself needs no Python.
"""

import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.set_default_dtype(torch.float64)
index = {}


def save(name, settings, **tensors):
    tensors = {k: t.detach().float() if t.is_floating_point() else t.detach() for k, t in tensors.items()}
    tensors = {k: t.contiguous().clone() for k, t in tensors.items()}
    # One entry only: the order of several is not the same in every run.
    metadata = {"torch": torch.__version__}
    save_file(tensors, f"{out}/{name}.safetensors", metadata=metadata)
    index[name] = {**settings, "tensors": {k: list(t.shape) for k, t in tensors.items()}}


def rounded(t):
    return t.float().double()


def normal(*shape, scale=1.0, offset=0.0):
    return rounded(torch.randn(*shape) * scale + offset).requires_grad_()


def round_parameters(module):
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.dim() == 1:
                nn.init.normal_(p, 1.0 if "norm" in name and "weight" in name else 0.0, 0.1)
            p.copy_(rounded(p))


def parameters(module, prefix="p."):
    return {prefix + k: p.clone() for k, p in module.named_parameters()}


def gradients(module, prefix="g."):
    return {prefix + k: p.grad.clone() for k, p in module.named_parameters()}


# LayerNorm of rows far from zero, and of tiny and huge ones.
for i, (name, scale, offset) in enumerate([("offset", 1.0, 300.0), ("tiny", 1e-3, 0.0), ("huge", 1e6, -1e6)]):
    torch.manual_seed(1000 + i)
    x, dy = normal(5, 200, scale=scale, offset=offset), normal(5, 200)
    norm = nn.LayerNorm(200, eps=1e-6)
    nn.init.normal_(norm.weight, 1.0, 0.2)
    nn.init.normal_(norm.bias, 0.0, 0.2)
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(rounded(p))
    y = norm(x)
    y.backward(dy)
    save(f"layernorm_{name}", {"eps": 1e-6}, x=x, dy=dy, y=y, dx=x.grad, **parameters(norm), **gradients(norm))

# Softmax of logits far apart: most probabilities vanish. (Where all but one do, so does the gradient, but for rounding.)
torch.manual_seed(1100)
x, dy = normal(4, 67, scale=40.0), normal(4, 67)
y = torch.softmax(x, -1)
y.backward(dy)
save("softmax_far_apart", {}, x=x, dy=dy, y=y, dx=x.grad)

# GELU where it is nearly 0, nearly linear, and where a naive tanh or exp overflows.
ranges = {
    "left": -torch.linspace(0.5, 15, 97),
    "tiny": torch.cat([torch.linspace(-1e-6, 1e-6, 51), torch.tensor([0.0, 1e-30, -1e-30])]),
    "huge": torch.tensor([-1e30, -1e12, -1e4, -200.0, -50.0, 50.0, 200.0, 1e4, 1e12, 1e30]),
    "middle": torch.linspace(-12, 12, 241),
}
for approximate in ("none", "tanh"):
    for name, values in ranges.items():
        torch.manual_seed(1200)
        x = rounded(values).requires_grad_()
        dy = normal(len(values))
        y = F.gelu(x, approximate=approximate)
        y.backward(dy)
        save(f"gelu_{approximate}_{name}", {}, x=x, dy=dy, y=y, dx=x.grad)

# Cross-entropy: a large vocabulary, large logits, and PyTorch's own ignored id, which no vocabulary has.
for i, (name, rows, vocabulary, scale, smoothing, ignore) in enumerate(
    [("wide", 5, 4999, 3.0, 0.1, 0), ("large_logits", 9, 61, 60.0, 0.1, 0), ("ignore_negative", 7, 29, 2.0, 0.2, -100)]
):
    torch.manual_seed(1300 + i)
    logits = normal(rows, vocabulary, scale=scale)
    target = torch.randint(1, vocabulary, (rows,))
    target[2] = ignore
    loss = F.cross_entropy(logits, target, ignore_index=ignore, label_smoothing=smoothing)
    loss.backward()
    settings = {"ignore_index": ignore, "label_smoothing": smoothing, "reduction": "mean over non-ignored"}
    save(f"cross_entropy_{name}", settings, logits=logits, target=target, loss=loss.reshape(1), dlogits=logits.grad)

# Attention: every mask with every other. A query that sees no key has the output 0 and no gradient, in PyTorch too where the
# mask is boolean.
attention = [
    # name, B, H, T, S, D, mode, key mask, bias
    ("pad_causal", 3, 2, 21, 21, 16, "pad+causal", "lengths", False),
    ("bias", 2, 3, 9, 14, 16, "none", None, True),
    ("bias_pad_causal", 2, 2, 18, 18, 8, "pad+causal", "lengths", True),
    ("holes", 3, 2, 7, 40, 16, "pad", "holes", False),
    ("holes_causal_bias", 2, 2, 27, 27, 16, "pad+causal", "holes", True),
    ("causal_more_keys", 2, 2, 6, 19, 16, "causal", None, False),
    ("causal_more_queries", 2, 2, 19, 6, 16, "causal", None, False),
    ("wide_head", 1, 1, 5, 33, 256, "none", None, False),
    ("odd_head", 2, 2, 10, 11, 20, "pad", "lengths", False),
    ("one_key", 2, 2, 3, 1, 20, "none", None, False),
    ("sharp", 1, 2, 12, 34, 16, "causal", None, False),
    ("masked_rows", 3, 2, 9, 9, 8, "pad+causal", "late", False),
    ("masked_sequence", 3, 2, 4, 10, 8, "pad", "none", False),
]
for i, (name, b, h, t, s, d, mode, mask, with_bias) in enumerate(attention):
    torch.manual_seed(1400 + i)
    sharpness = 12.0 if name == "sharp" else 1.0
    q, k, v, do = normal(b, h, t, d, scale=sharpness), normal(b, h, s, d), normal(b, h, s, d), normal(b, h, t, d)
    allowed = torch.ones(b, 1, t, s, dtype=torch.bool)
    more = {}
    if mask == "lengths":
        lengths = torch.tensor([s - (5 * row) % s for row in range(b)])
        keys = torch.arange(s)[None] < lengths[:, None]
    elif mask == "holes":
        keys = torch.rand(b, s) < 0.6
        keys[:, 0] = True
    elif mask == "late":
        keys = torch.arange(s)[None] >= torch.tensor([2, 0, s])[:, None]
    elif mask == "none":
        keys = torch.arange(s)[None] < torch.tensor([s, 0, 3])[:, None]
    if mask:
        allowed = allowed & keys[:, None, None, :]
        more["key_mask"] = keys.to(torch.uint8)
    if "causal" in mode:
        allowed = allowed & torch.ones(t, s, dtype=torch.bool).tril()
    scores = allowed
    if with_bias:
        bias = normal(h, t, s)
        scores = torch.zeros(b, 1, t, s).masked_fill(~allowed, -math.inf) + bias[None]
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=scores)
    o.backward(do)
    if with_bias:
        more |= {"bias": bias, "dbias": bias.grad}
    settings = {"scale": 1 / math.sqrt(d), "mode": mode}
    save(f"sdpa_{name}", settings, q=q, k=k, v=v, do=do, o=o, dq=q.grad, dk=k.grad, dv=v.grad, **more)

# An encoder with LayerNorm first, and one after its last layer.
torch.manual_seed(1500)
layer = nn.TransformerEncoderLayer(20, 2, 36, 0.0, activation="relu", batch_first=True, norm_first=True)
encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(20), enable_nested_tensor=False)
round_parameters(encoder)
x = normal(2, 7, 20)
pad = torch.tensor([[0] * 7, [0, 0, 0, 0, 0, 1, 1]], dtype=torch.bool)
y = encoder(x, src_key_padding_mask=pad)
dy = normal(2, 7, 20).detach().masked_fill(pad[:, :, None], 0.0)
y.backward(dy)
settings = {"d": 20, "heads": 2, "ff": 36, "layers": 2, "norm_first": True, "act": "relu", "eps": 1e-5}
save("encoder_prenorm_relu_pad", settings, x=x, pad=pad.to(torch.uint8), y=y, dy=dy, dx=x.grad, **parameters(encoder), **gradients(encoder))

# Whole Transformers: one Adam step; and the losses of ten steps on one batch, of which the first is `loss`.
transformers = [
    ("transformer_postnorm_gelu_plain", 1600, False, "gelu", 0.0, 1),
    ("transformer_ten_losses", 1650, True, "relu", 0.1, 10),
]
for name, seed, norm_first, activation, smoothing, steps in transformers:
    torch.manual_seed(seed)
    d, heads, layers, ff, rows, s, t, vocabulary = 12, 3, 1, 20, 4, 11, 6, 17
    model = nn.Transformer(d, heads, layers, layers, ff, 0.0, activation=activation, batch_first=True, norm_first=norm_first)
    embedding, head = nn.Embedding(vocabulary, d, padding_idx=0), nn.Linear(d, vocabulary)
    modules = {"tr.": model, "emb.": embedding, "head.": head}
    for module in modules.values():
        round_parameters(module)
    src, tgt = torch.randint(3, vocabulary, (rows, s)), torch.randint(3, vocabulary, (rows, t + 1))
    src[1, 4:] = 0
    src[3, 1:] = 0
    tgt[2, 3:] = 0
    padding, causal = src == 0, torch.ones(t, t, dtype=torch.bool).triu(1)
    angle = torch.arange(s)[:, None] / torch.pow(10000.0, torch.arange(0, d, 2) / d)
    pe = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def embed(ids):
        return embedding(ids) * math.sqrt(d) + pe[: ids.size(1)]

    before, grads, after, losses = {}, {}, {}, []
    for prefix, module in modules.items():
        before |= parameters(module, "p." + prefix)
    everything = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.Adam(everything, lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    for step in range(steps):
        optimizer.zero_grad()
        memory = model.encoder(embed(src), src_key_padding_mask=padding)
        dec = model.decoder(embed(tgt[:, :-1]), memory, tgt_mask=causal, memory_key_padding_mask=padding)
        logits = head(dec)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=smoothing)
        loss.backward()
        losses.append(loss.detach().clone())
        if step == 0:
            results = {"memory": memory, "dec": dec, "logits": logits, "loss": loss.reshape(1)}
            for prefix, module in modules.items():
                grads |= gradients(module, "g." + prefix)
        optimizer.step()
        if step == 0:
            for prefix, module in modules.items():
                after |= parameters(module, "adam1." + prefix)
    if steps > 1:
        results["losses"] = torch.stack(losses)
    settings = {
        "d": d, "heads": heads, "layers": layers, "ff": ff, "norm_first": norm_first, "act": activation, "eps": 1e-5,
        "final_norm": True, "pe": "sinusoidal interleaved", "lr": 3e-3, "label_smoothing": smoothing, "ignore_index": 0,
    }
    save(name, settings, src=src, tgt=tgt, pe=pe, **results, **before, **grads, **after)

# Adam and AdamW over several steps, with and without clipping: g [steps, n], after [steps, n], the moments at the end.
optimizers = [
    ("adam_plain", torch.optim.Adam, {"weight_decay": 0.0}, None),
    ("adam_l2", torch.optim.Adam, {"weight_decay": 0.1}, None),
    ("adamw_decay", torch.optim.AdamW, {"weight_decay": 0.1}, None),
    ("adamw_clip", torch.optim.AdamW, {"weight_decay": 0.01}, 0.5),
]
for i, (name, optimizer, extra, clip) in enumerate(optimizers):
    torch.manual_seed(1700 + i)
    n, steps = 128, 5
    p = nn.Parameter(normal(n).detach())
    g = normal(steps, n, scale=0.1).detach()
    settings = {"lr": 1e-2, "betas": [0.9, 0.98], "eps": 1e-9, **extra}
    run = optimizer([p], lr=settings["lr"], betas=tuple(settings["betas"]), eps=settings["eps"], **extra)
    start, states, norms = p.detach().clone(), [], []
    for step in range(steps):
        p.grad = g[step].clone()
        norms.append(nn.utils.clip_grad_norm_([p], clip if clip else math.inf))
        run.step()
        states.append(p.detach().clone())
    state = run.state[p]
    if clip:
        settings["clip_norm"] = clip
    save(name, settings, p=start, g=g, after=torch.stack(states), norm=torch.stack(norms), m=state["exp_avg"], v=state["exp_avg_sq"])

with open(f"{out}/index.json", "w") as file:
    json.dump(index, file, indent=1)
    file.write("\n")
files = [f for f in os.listdir(out) if f.endswith(".safetensors")]
print(len(index), "cases,", sum(os.path.getsize(f"{out}/{f}") for f in files) // 1024, "KiB")
