"""StreamingLLM on Hugging Face's GPT-NeoX: a text without end, with the model's own layers and with fused ones.

    python gpt_neox_streaming.py                    the built-in storyteller; on a GPU also Pythia-2.8B's shape
    python gpt_neox_streaming.py --sinks 4 --window 252 --text book.txt --out results

The cache is transformers' DynamicCache. It keeps the first tokens (the sinks) and the last ones (the window). When it
is full, a block of tokens behind the sinks is dropped. The keys after it are rotated back by as many positions. That is
enough: keys are stored rotated, and a rotary score depends only on the distance between query and key. Slots and
positions are then 0 to n-1 again, so the model is called as usual. `fusebox.torch.fuse(model)` replaces its layers and
changes nothing else.

Before anything is timed, the script checks for both kinds of layers:

    the cache never holds more than sinks + window tokens
    keys of the first layer, which depend on token and position alone, are those that the model computes afresh
    both choose the same token wherever the plain layers' two best logits differ by more than the largest difference
    between plain and fused logits; at least half of the steps must be such. The last 32 tokens are not chosen again,
    because a small model would soon repeat itself
    both give the same perplexity; with sinks, it is at most twice that of a dense cache that begins anew whenever the
    context is full
    each step of the fused model ran in the C library

If a check fails it prints why, and the exit status is 1. Columns of the tables:

    first N, beyond   perplexity of the tokens within the model's context, and of those after it
    early, late       the stream whose cache has just become full, and the same stream far beyond the context
    median ms         time per token (TPOT), and its 10th to 90th percentile; early and late, plain and fused in turns
    mean ms           with the steps that drop a block
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import report as shared
import torch
import transformers
from report import CheckFailed, Report
from torch import Tensor
from transformers import DynamicCache

import fusebox
from fusebox.torch import fuse

STORYTELLER = fusebox._c.FILES / "share" / "fusebox" / "models" / "storyteller"
TEXT = Path(__file__).resolve().parents[2] / "tests" / "data" / "oz_book.txt"
AutoModel: Any = transformers.AutoModelForCausalLM  # its methods have no types
PYTHIA: dict[str, Any] = {
    "vocab_size": 50304,
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 10240,
    "max_position_embeddings": 2048,
}
RECENT = 32  # tokens that are not chosen again
WORSE = 2.0  # how much larger the perplexity of the stream may be than that of a dense cache
SAME = 1e-3  # how much perplexities of plain and fused layers may differ; in float32 they agree to 1e-6

# ---- the stream ------------------------------------------------------------------------------------------------------


def rotate_back(keys: Tensor, frequencies: Tensor, distance: int) -> Tensor:
    """Rotated keys [batch, heads, tokens, width] as they are ``distance`` positions earlier. frequencies [rotary / 2]:
    only the first ``rotary`` elements of a head are rotated, each with the one half of that many elements later."""
    angles = frequencies.double() * distance
    cosines, sines = angles.cos().float(), angles.sin().float()
    half = frequencies.numel()
    a, b = keys[..., :half].float(), keys[..., half : 2 * half].float()
    turned = torch.cat([a * cosines + b * sines, b * cosines - a * sines], -1)
    return torch.cat([turned.to(keys.dtype), keys[..., 2 * half :]], -1)


@dataclass
class Stream:
    """A model that reads without end: its cache holds at most ``sinks + window`` tokens."""

    model: Any
    sinks: int
    window: int
    block: int
    cache: Any = field(default_factory=DynamicCache)
    kept: list[int] = field(default_factory=list)
    """The tokens in the cache."""
    last: Tensor | None = None
    """The logits [vocab] after the last token."""

    @property
    def capacity(self) -> int:
        return self.sinks + self.window

    def drop(self) -> None:
        """Forgets the ``block`` tokens behind the sinks, and moves those after them to their places."""
        end = self.sinks + self.block
        frequencies = self.model.gpt_neox.rotary_emb.inv_freq
        for layer in self.cache.layers:
            moved = rotate_back(layer.keys[:, :, end:], frequencies, self.block)
            layer.keys = torch.cat([layer.keys[:, :, : self.sinks], moved], 2)
            layer.values = torch.cat([layer.values[:, :, : self.sinks], layer.values[:, :, end:]], 2)
        del self.kept[self.sinks : end]

    def step(self, ids: Tensor) -> Tensor:
        """Reads ids [rows], at most ``block`` of them; the logits after each: [rows, vocab]."""
        if len(self.kept) + ids.numel() > self.capacity:
            self.drop()
        self.kept += ids.tolist()
        logits: Tensor = self.model(ids[None], past_key_values=self.cache, use_cache=True).logits[0]
        self.last = logits[-1]
        return logits

    def read(self, ids: Tensor) -> Tensor:
        """Reads ids [n] a block at a time; what each cost to predict, in nats: [n], or [n - 1] without the first."""
        costs = []
        for part in torch.split(ids, self.block):
            before = self.last
            logits = self.step(part)[:-1]
            if before is None:
                part = part[1:]
            else:
                logits = torch.cat([before[None], logits])
            costs.append(torch.nn.functional.cross_entropy(logits.float(), part, reduction="none"))
        return torch.cat(costs)

    def fork(self) -> Stream:
        """A stream of its own that has read the same."""
        return replace(self, cache=copy.deepcopy(self.cache), kept=list(self.kept))


Pair = Sequence[Stream]
"""The same stream with plain and with fused layers."""


def sharing(model: Any) -> Any:
    """A second model with the same weights."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in model.parameters()})


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_cache(name: str, stream: Stream) -> None:
    """The cache is no longer than it may be, and keys of the first layer are those of their slots."""
    lengths = {layer.keys.shape[2] for layer in stream.cache.layers}
    if lengths != {len(stream.kept)} or len(stream.kept) > stream.capacity:
        raise CheckFailed(f"{name}: the cache holds {sorted(lengths)} tokens (at most {stream.capacity})")
    keys = stream.cache.layers[0].keys.float()
    afresh: Any = DynamicCache()
    stream.model(torch.tensor([stream.kept], device=keys.device), past_key_values=afresh, use_cache=True)
    wanted = afresh.layers[0].keys
    # The rounding of a key each time that it is moved; and of the model's angles, which it computes in float32.
    limit = 4.0 * torch.finfo(wanted.dtype).eps * (2 + stream.window // stream.block) + 2.0**-22 * stream.capacity
    off = float((keys - wanted.float()).abs().max() / wanted.float().abs().max())
    if not off <= limit:
        raise CheckFailed(f"{name}: keys of the first layer are off by {off:.1e} of the largest (at most {limit:.1e})")


def allowed(stream: Stream) -> Tensor:
    """The logits [vocab] of the tokens that may come next."""
    assert stream.last is not None
    logits = stream.last.float().clone()
    logits[stream.kept[-RECENT:]] = -math.inf
    return logits


def check_tokens(report: Report, pair: Pair, count: int) -> None:
    """Both streams go on by the same ``count`` tokens: the best ones of the plain stream."""
    gaps: list[float] = []
    largest, others, chosen = 0.0, [], set()
    for step in range(count):
        plain, fused = (allowed(stream) for stream in pair)
        finite = plain > -math.inf
        away = float((plain - fused)[finite].abs().max())
        largest = max(largest, away) if away == away else math.inf
        best = plain.topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        if int(fused.argmax()) != int(best.indices[0]):
            others.append(step)
        chosen.add(int(best.indices[0]))
        for stream in pair:
            stream.step(best.indices[:1])
    clear = sum(gap > largest for gap in gaps)
    wrong = [step for step in others if gaps[step] > largest]
    if wrong:
        raise CheckFailed(f"step {wrong[0]}: another token, but the two best logits differ by {gaps[wrong[0]]:.3g}")
    if not 2 * clear >= count:
        raise CheckFailed(f"only {clear} of {count} steps have a clear winner: logits differ by up to {largest:.3g}")
    same = "no step differs" if not others else f"{shared.plural(len(others), 'step')} without a clear winner differ"
    report.say(
        f"Greedy tokens: {count} steps, {len(chosen)} different tokens. In {clear} steps the two best logits differ by "
        f"more than {largest:.2e}, the largest difference between plain and fused. There both choose the same token; "
        f"in all: {same}."
    )


def check_fused(done: Any) -> None:
    """done: what ``fuse`` returned. Every step ran in the C library."""
    done.check()
    if done.fallbacks or not done.forwards or done.kept:
        reasons = [*done.fallbacks, *(kept.reason for kept in done.kept)]
        raise CheckFailed(f"steps or layers kept the original forward: {reasons[0] if reasons else 'all'}")


# ---- what is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """What a stream remembers. ``piece``: after so many tokens it forgets everything and begins anew."""

    name: str
    sinks: int
    window: int
    piece: int


def memories(options: argparse.Namespace, context: int, length: int) -> list[Memory]:
    both = options.sinks + options.window
    found = [
        Memory(f"dense, cut every {context} tokens", 0, context, context),
        Memory(f"window, {both} tokens", 0, both, length),
    ]
    if options.sinks:
        name = f"{shared.plural(options.sinks, 'sink')} + window, {both} tokens"
        found.append(Memory(name, options.sinks, options.window, length))
    return found


def perplexity(label: str, model: Any, memory: Memory, ids: Tensor, context: int, block: int) -> list[float]:
    """Of ids [n]: of the tokens within the context, and of those beyond it."""
    within, beyond = [], []
    for number, piece in enumerate(torch.split(ids, memory.piece)):
        stream = Stream(model, memory.sinks, memory.window, block)
        costs = stream.read(piece).double()
        check_cache(label, stream)
        inside = context - 1 if number == 0 else 0  # the first token is not predicted
        within.append(costs[:inside])
        beyond.append(costs[inside:])
    return [float(torch.cat(part).mean().exp()) for part in (within, beyond)]


def perplexities(report: Report, models: tuple[Any, Any], ids: Tensor, options: argparse.Namespace) -> None:
    """The table of perplexities of the text, which is longer than the context."""
    context = models[0].config.max_position_embeddings
    rows: list[tuple[str, ...]] = []
    limits = [math.inf, math.inf]
    for memory in memories(options, context, len(ids)):
        labels = [f"{memory.name}, {layers}" for layers in ("plain", "fused")]
        found = [perplexity(n, m, memory, ids, context, options.block) for n, m in zip(labels, models)]
        for plain, fused, limit in zip(*found, limits):
            if not math.isclose(plain, fused, rel_tol=SAME):
                raise CheckFailed(f"{memory.name}: perplexity {plain:.6g} with plain, {fused:.6g} with fused layers")
            if memory.sinks and not plain <= limit:
                raise CheckFailed(f"{memory.name}: perplexity {plain:.1f} (at most {limit:.1f}: {WORSE} times dense)")
        if not rows:
            limits = [WORSE * plain for plain in found[0]]
        rows.append((memory.name, *(f"{found[layers][part]:.4f}" for part in (0, 1) for layers in (0, 1))))
    header = [f"{part}, {layers}" for part in (f"first {context}", "beyond") for layers in ("plain", "fused")]
    report.table(("cache", *header), rows)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(stream: Stream, ids: Tensor) -> list[float]:
    """Seconds of each step that reads one of ids [n] and chooses a token."""
    seconds = []
    for token in torch.split(ids, 1):
        sync(ids.device)
        start = time.perf_counter()
        stream.step(token)[-1].argmax()
        sync(ids.device)
        seconds.append(time.perf_counter() - start)
    return seconds


def times(report: Report, early: Pair, late: Pair, ids: Tensor, rounds: int) -> None:
    """The table of times per token. The streams take turns, ids [n] at a time, the first turns of all uncounted."""
    streams = {
        ("plain", "early"): early[0],
        ("fused", "early"): early[1],
        ("plain", "late"): late[0],
        ("fused", "late"): late[1],
    }
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in streams}
    for turn in range(rounds + 1):
        for name, stream in streams.items():
            taken = timed(stream, ids if turn else ids[:8])
            seconds[name] += taken if turn else []
    median = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    rows = []
    for (layers, when), values in seconds.items():
        ordered = sorted(1e3 * s for s in values)
        low, high = ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]
        mine = median[layers, when]
        ratios = (f"{median['plain', when] / mine:.2f}", f"{mine / median[layers, 'early']:.2f}")
        spread = f"{low:.3f} to {high:.3f}"
        rows.append((layers, when, f"{mine:.3f}", spread, f"{statistics.mean(ordered):.3f}", *ratios))
    report.table(("layers", "in the stream", "median ms", "10% to 90%", "mean ms", "x plain", "late / early"), rows)


def stream_both(
    report: Report, models: tuple[Any, Any], done: Any, ids: Tensor, options: argparse.Namespace
) -> None:
    """Both streams read ids [n], and go on with greedy tokens. Then they are timed, as are those that only have filled
    their caches. done: what ``fuse`` returned for the second model."""
    early, late = [], []
    for model in models:
        stream = Stream(model, options.sinks, options.window, options.block)
        stream.read(ids[: stream.capacity])
        early.append(stream.fork())
        for part in torch.split(ids[stream.capacity :], options.block):
            stream.step(part)
        late.append(stream)
    check_tokens(report, late, options.tokens)
    for layers, stream in zip(("plain", "fused"), late):
        check_cache(f"stream, {layers}", stream)
    check_fused(done)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in late[0].cache.layers)
    read, limit = len(ids) + options.tokens, models[0].config.max_position_embeddings
    report.say(
        f"Early: {late[0].capacity} tokens read. Late: {read} tokens, {read / limit:.1f} times the context of {limit}; "
        f"the cache holds {len(late[0].kept)} of them in {shared.amount(held)}."
    )
    times(report, early, late, ids[: options.block], options.rounds)


def storyteller(report: Report, device: str, options: argparse.Namespace) -> None:
    """The built-in model, or --model, in float32 on a real text."""
    model = AutoModel.from_pretrained(options.model, dtype=torch.float32)
    check_options(model, options)
    model = model.to(device).eval()
    text = options.text.read_text(encoding="utf-8", errors="replace")
    ids = torch.tensor(fusebox.Model(str(options.model)).tokenize(text[: 16 * options.read]), device=device)
    ids = ids[: options.read]
    needed = model.config.max_position_embeddings + 2
    if len(ids) < needed:
        raise CheckFailed(f"{options.text}: {len(ids)} tokens (at least {needed}, see --read: the text must be longer)")
    ids = ids[: len(ids) - (len(ids) % (needed - 2) == 1)]  # a piece of one token predicts nothing
    both = model, sharing(model)
    with fuse(both[1]) as done:
        report.say(f"{options.model.name}, float32: {len(ids)} tokens of {options.text.name}.")
        perplexities(report, both, ids, options)
        stream_both(report, both, done, ids, options)


def pythia(report: Report, device: str, options: argparse.Namespace) -> None:
    """A model of Pythia-2.8B's shape in float16. Its weights are random, with which some tokens clearly win."""
    config = transformers.GPTNeoXConfig(**PYTHIA)
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=torch.float16).eval()
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=1.0 if "emb" in name else weight.shape[-1] ** -0.5)
    context = PYTHIA["max_position_embeddings"]
    large = argparse.Namespace(**vars(options))
    large.sinks, large.window, large.block, large.tokens = 4, context // 2 - 4, context // 8, min(options.tokens, 128)
    ids = torch.randint(0, PYTHIA["vocab_size"], (3 * context,), device=device)
    both = model, sharing(model)
    with fuse(both[1]) as done:
        report.say(f"Pythia-2.8B's shape, float16, random weights: 4 sinks and a window of {large.window}.")
        stream_both(report, both, done, ids, large)


# ---- the script ------------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """A number of tokens on the command line, 0 allowed."""
    return 0 if text == "0" else shared.size(text)


def existing(text: str) -> Path:
    """A file or folder that is there; transformers would look for a model elsewhere."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} (there is no such file or folder)")
    return path


def check_options(model: Any, options: argparse.Namespace) -> None:
    """What depends on the model."""
    if model.config.model_type != "gpt_neox":
        raise CheckFailed(f"--model: {options.model}: {model.config.model_type} (must be gpt_neox)")
    context = model.config.max_position_embeddings
    if options.sinks + options.window > context:
        raise CheckFailed(f"--window: {options.window} and --sinks: {options.sinks} (together at most {context})")


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sinks", type=count, default=4, help="first tokens that stay (default 4)")
    parser.add_argument("--window", type=shared.size, default=252, help="last tokens that stay (default 252)")
    parser.add_argument("--block", type=shared.size, default=63, help="tokens dropped at a time (default 63)")
    parser.add_argument("--read", type=shared.size, default=1536, help="tokens of the text (default 1536)")
    parser.add_argument("--tokens", type=shared.size, default=384, help="greedy tokens to compare (default 384)")
    parser.add_argument("--rounds", type=partial(shared.size, most=1000), default=3, help="timed turns (default 3)")
    parser.add_argument("--text", type=existing, default=TEXT, help="a file of plain text (default: the Oz book)")
    parser.add_argument("--model", type=existing, default=STORYTELLER, help="folder of a GPT-NeoX (default: built in)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--no-pythia", action="store_true", help="on a GPU: the storyteller alone")
    text = f"CPU threads of PyTorch (default {cores}: the C library uses every core of the process)"
    parser.add_argument("--threads", type=partial(shared.size, most=256), default=cores, help=text)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the tables as Markdown")
    options = parser.parse_args(arguments)
    if 2 * options.block > options.window + 1:
        parser.error(f"--block: {options.block} (at most half of --window: {options.window})")

    @torch.no_grad()
    def body() -> None:
        report = Report("gpt_neox_streaming", "GPT-NeoX without end, plain and fused", options)
        storyteller(report, "cuda" if gpu else "cpu", options)
        if gpu and not options.no_pythia:
            pythia(report, "cuda", options)
        report.write()

    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    return shared.checked(body)


if __name__ == "__main__":
    sys.exit(main())
