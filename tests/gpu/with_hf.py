#!/usr/bin/env python3
"""Fusebox in float16 against Hugging Face: no further from Hugging Face in float32 than its own float16 is.

    tests/gpu/with_hf.py --fusebox build/fusebox [--shape neox-2.8b] [--folder DIR] [--backend cuda] [--device cuda]

Makes a checkpoint of random float16 weights (bench/make_checkpoint.py) unless DIR has one, runs it with transformers in
float32 (the truth) and float16, and has `fusebox verify --golden` compare itself with the truth. Required:
 - at every layer and for the logits, Fusebox's relative error (norm of the difference over norm of the truth, all tokens)
   is at most SLACK times that of Hugging Face in float16;
 - after every token of the truth's greedy continuation, Fusebox's best token is the truth's, unless the truth's best two
   are closer than twice the largest error of a logit, Fusebox's own or Hugging Face's.
Needs torch, transformers, safetensors.
"""
import argparse, json, os, subprocess, sys, time

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

SLACK = 1.05  # two roundings of the same kind differ by less: the norms are over some hundred thousand elements
TOKENS, GREEDY = 64, 32
HERE = os.path.dirname(os.path.abspath(__file__))


def note(text, since):
    print(f"# {time.time() - since:6.1f} s  {text}", flush=True)


def load(folder, dtype, device):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager" if dtype == torch.float32 else "sdpa")
    return model.to(device).eval()


@torch.no_grad()
def greedy(model, ids):
    """The continuation, and the distance of the best two scores at each of its tokens."""
    answer = model(ids, use_cache=True)
    tokens, gaps = [], []
    for _ in range(GREEDY):
        top = answer.logits[0, -1].float().topk(2)
        tokens.append(top.indices[0].item())
        gaps.append((top.values[0] - top.values[1]).item())
        answer = model(torch.tensor([[tokens[-1]]], device=ids.device), past_key_values=answer.past_key_values, use_cache=True)
    return tokens, gaps


@torch.no_grad()
def states(model, ids):
    answer = model(ids, output_hidden_states=True)
    return [h[0].float().cpu() for h in answer.hidden_states], answer.logits[0].float().cpu()


def relative(have, truth):
    return ((have.double() - truth.double()).norm() / truth.double().norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fusebox", default="build/fusebox")
    parser.add_argument("--shape", default="neox-2.8b")
    parser.add_argument("--folder", default="/tmp/fusebox-hf")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    start = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = os.path.join(args.folder, args.shape)
    if not os.path.exists(os.path.join(folder, "config.json")):
        subprocess.run([sys.executable, os.path.join(HERE, "../../bench/make_checkpoint.py"), folder, "--shape", args.shape], check=True)
    note("checkpoint", start)

    model = load(folder, torch.float32, args.device)
    vocab = model.config.vocab_size
    ids = torch.randint(0, vocab, (1, TOKENS), generator=torch.Generator().manual_seed(7)).to(args.device)
    truth, truth_logits = states(model, ids)
    tokens, gaps = greedy(model, ids)
    del model
    note("Hugging Face, float32", start)
    golden = os.path.join(folder, "golden.safetensors")
    tensors = {f"hidden.{i}": h.contiguous() for i, h in enumerate(truth)}
    tensors |= {"input_ids": ids[0].int().cpu().contiguous(), "logits": truth_logits.contiguous(),
                "greedy": torch.tensor(tokens, dtype=torch.int32)}
    save_file(tensors, golden, metadata={"source": "transformers float32 eager"})

    model = load(folder, torch.float16, args.device)
    half, half_logits = states(model, ids)
    del model
    if args.device == "cuda":
        torch.cuda.empty_cache()
    note("Hugging Face, float16", start)
    half_worst = (half_logits - truth_logits).abs().max().item()

    failed = 0
    for fuse in ("none", "all"):
        command = [args.fusebox, "verify", folder, "--golden", golden, "--backend", args.backend, "--act", "f16", "--fuse", fuse, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.stdout:
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        note(f"fusebox, fuse {fuse}", start)
        rows = [(f"layer {x['layer']}", x["rel"], relative(half[i], truth[i])) for i, x in enumerate(report["layers"])]
        rows.append(("logits", report["logits"]["rel"], relative(half_logits, truth_logits)))
        for name, mine, theirs in rows:
            good = mine is not None and mine <= SLACK * theirs
            failed += not good
            print(f"{'ok' if good else 'not ok'} - fuse {fuse}, {name}: relative error {mine:.3e}, Hugging Face's {theirs:.3e}")
        # verify compares its best token with the truth's after each of the truth's tokens. Those that it finds different
        # must all be where the truth itself could not tell.
        error = max(report["logits_max_abs"], half_worst)
        unclear = sum(g <= 2 * error for g in gaps)
        different = report["greedy_tokens"] - report["greedy_equal"]
        good = different <= unclear
        failed += not good
        print(f"{'ok' if good else 'not ok'} - fuse {fuse}, greedy: {report['greedy_equal']} of {report['greedy_tokens']} tokens "
              f"equal; {unclear} have a gap below {2 * error:.3g}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
