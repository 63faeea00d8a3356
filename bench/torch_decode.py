#!/usr/bin/env python3
"""Decoding of a Hugging Face GPT-NeoX, Llama or GPT-2 at batch 1: as it is, compiled, and with fused layers.

Every variant decodes the same tokens. The fused model's logits are compared with a float32 run: they must be about as
near as the original's, and the tokens equal wherever the original's two best logits differ by more than three times its
own error. With exact=True the logits must have the bits of the plain ops.

    python3 bench/torch_decode.py                      # a tiny model on the CPU; Pythia-2.8B's shape on a GPU
    python3 bench/torch_decode.py --shape llama-1b --json out.json
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

try:
    import fusebox.torch
except ImportError:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "src"))
    import fusebox.torch

import transformers
from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, StaticCache

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

SHAPES = {
    "tiny": GPTNeoXConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    ),
    "tiny-llama": LlamaConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=352,
    ),
    "tiny-gpt2": GPT2Config(vocab_size=512, n_embd=128, n_layer=4, n_head=4),
    "neox-2.8b": GPTNeoXConfig(
        vocab_size=50304, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32, intermediate_size=10240
    ),
    "llama-1b": LlamaConfig(
        vocab_size=128256, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
        intermediate_size=8192, head_dim=64, tie_word_embeddings=True, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    "gpt2-xl": GPT2Config(vocab_size=50257, n_embd=1600, n_layer=48, n_head=25),
}


def make_model(shape: str, device: str, dtype: torch.dtype) -> torch.nn.Module:
    """Random weights, from which logits with clear winners follow."""
    torch.manual_seed(1)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 1.0 if "emb" in name or "wte" in name else 1.0 / parameter.shape[-1] ** 0.5
            torch.nn.init.normal_(parameter, std=scale)
        elif "bias" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval()


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# ---- decoders: each returns tokens, logits, and the seconds of each step ----------------------------------------


def eager(model: torch.nn.Module, ids: torch.Tensor, count: int, given: torch.Tensor | None = None):
    """A dynamic cache, one call of the model a token. ``given``: decode these tokens instead of the best ones."""
    tokens, logits, seconds = [], [], []
    out = model(ids, use_cache=True)
    token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
    for i in range(count):
        if given is not None:
            token = given[:, i : i + 1]
        tokens.append(token)
        sync(ids.device.type)
        start = time.perf_counter()
        out = model(token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        sync(ids.device.type)
        seconds.append(time.perf_counter() - start)
        logits.append(out.logits[:, -1].float())
    return torch.cat(tokens, 1), torch.stack(logits, 1), seconds


def static(model: torch.nn.Module, step, ids: torch.Tensor, count: int, capture: bool):
    """A static cache; ``step(token, cache, position)`` gives logits. With ``capture``, one CUDA graph of it."""
    cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + count + 32)
    out = model(ids, past_key_values=cache)
    token = out.logits[:, -1:].argmax(-1).clone()
    position = torch.tensor([[ids.shape[1]]], device=ids.device)

    def once() -> torch.Tensor:
        logits = step(token, cache, position)
        token.copy_(logits[:, -1:].argmax(-1))
        position.add_(1)
        return logits

    tokens, logits, seconds = [token.clone()], [], []
    run = once
    for _ in range(3):  # a compiled step compiles, a captured one warms up
        logits.append(once()[:, -1].float())
        tokens.append(token.clone())
    if capture:
        graph = torch.cuda.CUDAGraph()
        held = [None]
        with torch.cuda.graph(graph):
            held[0] = once()

        def run() -> torch.Tensor:
            graph.replay()
            return held[0]

    for _ in range(count - 3):
        sync(ids.device.type)
        start = time.perf_counter()
        out = run()
        sync(ids.device.type)
        seconds.append(time.perf_counter() - start)
        logits.append(out[:, -1].float())
        tokens.append(token.clone())
    return torch.cat(tokens[:-1], 1), torch.stack(logits, 1), seconds


def call(model: torch.nn.Module):
    return lambda token, cache, position: model(token, past_key_values=cache, position_ids=position).logits


# ---- checks ---------------------------------------------------------------------------------------------------------


def check_tokens(name: str, original: torch.Tensor, fused: torch.Tensor, wide: torch.Tensor) -> None:
    """Logits after the same tokens. ``wide``: those of the original in float32, which say how far the original itself
    is off. The fused model must be about as near, and choose the same token wherever the original's two best logits are
    further apart than three times the original's own largest error."""
    theirs, mine = ((logits - wide).abs().max().item() for logits in (original, fused))
    if not mine <= 1.5 * theirs + 1e-5:
        sys.exit(f"{name}: logits are up to {mine:.3g} from float32, the original's {theirs:.3g} (at most 1.5 times)")
    bound = 3 * theirs + 1e-5
    best = original.topk(2, -1).values
    clear = best[..., 0] - best[..., 1] > bound
    if not bool((original.argmax(-1) == fused.argmax(-1))[clear].all()):
        sys.exit(f"{name}: another token, where the two best logits differ by more than {bound:.3g}")
    if int(clear.sum()) * 4 < clear.numel():
        sys.exit(f"{name}: only {int(clear.sum())} of {clear.numel()} steps have a clear winner: too few for a proof")
    print(f"{name}: logits at most {mine:.3g} from float32, the original's {theirs:.3g}; in {int(clear.sum())} of "
          f"{clear.numel()} steps the two best differ by more than {bound:.3g}: the same token in all of them")


def row(name: str, seconds: list[float], base: float | None) -> dict:
    ms = sorted(1e3 * s for s in seconds)
    median = statistics.median(ms)
    spread = ms[len(ms) * 9 // 10] - ms[len(ms) // 10]
    line = {"variant": name, "ms": median, "spread_ms": spread, "faster": base / median if base else 1.0}
    print(f"{name:28} {median:9.3f} ms  +- {spread:6.3f}  {line['faster']:6.2f}x")
    return line


@torch.no_grad()
def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="neox-2.8b" if gpu else "tiny")
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float16" if gpu else "float32")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument("--json", help="write the results to this file")
    a = parser.parse_args()
    device, dtype = a.device, getattr(torch, a.dtype)
    model = make_model(a.shape, device, dtype)
    ids = torch.randint(0, model.config.vocab_size, (1, a.prompt), device=device)

    print(f"# {a.shape}, {a.dtype}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, "
          f"torch {torch.__version__}, transformers {transformers.__version__}")
    eager(model, ids, 3)
    tokens, logits, seconds = eager(model, ids, a.tokens)
    rows = [row("Hugging Face, eager", seconds, None)]
    base = rows[0]["ms"]

    # Logits of the same tokens, all read at once, in float32.
    reading = torch.cat([ids, tokens], 1)
    wide = copy.deepcopy(model).float()(reading).logits[:, a.prompt :].float()

    if not a.no_compile:
        start = time.perf_counter()
        compiled = torch.compile(model, mode="reduce-overhead" if device == "cuda" else None, fullgraph=True)
        _, _, seconds = static(model, call(compiled), ids, a.tokens, False)
        rows.append(row("Hugging Face, torch.compile", seconds, base))
        print(f"# compiled and run in {time.perf_counter() - start:.0f} s")
        torch._dynamo.reset()

    start = time.perf_counter()
    with fusebox.torch.fuse(model, "none", exact=True) as report:
        _, plain, seconds = eager(model, ids, a.tokens, tokens)
        rows.append(row('fuse(model, "none")', seconds, base))
    print(f"# proven and run in {time.perf_counter() - start:.0f} s")
    with fusebox.torch.fuse(model, "all", exact=True) as report:
        _, exact, seconds = eager(model, ids, a.tokens, tokens)
        rows.append(row('fuse(model, exact=True)', seconds, base))
    same = torch.equal(plain, exact)
    print(f"exact: the bits of all logits are {'those' if same else 'NOT those'} of the plain ops")
    with fusebox.torch.fuse(model, "all") as report:
        eager(model, ids, 3)
        _, fused, seconds = eager(model, ids, a.tokens, tokens)
        rows.append(row("fuse(model)", seconds, base))
        check_tokens("fuse(model)", logits, fused, wide)
        if device == "cuda":
            _, captured, seconds = static(model, call(model), ids, a.tokens, True)
            rows.append(row("fuse(model), CUDA graph", seconds, base))
            finite = bool(torch.isfinite(captured).all())
            print(f"in a CUDA graph: logits within {(captured - fused).abs().max().item():.3g} of the eager ones, "
                  f"{'finite' if finite else 'NOT finite'}")
        print(report)
    if a.json:
        Path(a.json).write_text(json.dumps({"shape": a.shape, "dtype": a.dtype, "rows": rows}, indent=1))
    if not same:
        sys.exit("fuse(model, exact=True): other bits than the plain ops")


if __name__ == "__main__":
    main()
