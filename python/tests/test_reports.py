"""Reports print the tables of the command line."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import get_args

import pytest

import fusebox
from conftest import Cli
from fusebox._c import lib
from fusebox.quantize import QuantizedMix, QuantizedType


def shape(text: str) -> str:
    """A table without its numbers and the width of its columns."""
    text = re.sub(r"^(note: .*|\s*)\n", "", text + "\n", flags=re.MULTILINE)
    text = re.sub(r"(keep|leave|kept|left: [a-z]\S* takes its ops|left: .*)$", "verdict", text, flags=re.MULTILINE)
    text = re.sub(r"  (keep|leave) ", "  plan ", text)
    text = re.sub(r"\d+ (bytes|[kKMG]?B)\b", "N B", re.sub(r"[-+]?\d+(\.\d+)?(e[-+]\d+)?", "0", text))
    return re.sub(r"faster|slower", "than", re.sub(r"[ \t]+", " ", text))


def test_info(model: fusebox.Model, cli: Cli, root: Path) -> None:
    assert str(model.info) + "\n" == cli("info")
    assert (model.info.architecture, model.info.vocab, model.info.context) == ("gpt_neox", 4096, 512)
    other = root / "tests/data/golden/llama-gqa-tied"
    assert str(fusebox.Model(other).info) + "\n" == cli("info", other)
    assert "<table>" in model.info._repr_html_()


def test_fuses(model: fusebox.Model, cli: Cli) -> None:
    fuses = model.fuses()
    assert str(fuses) + "\n" == cli("fuses")
    assert fuses["add_norm"].bit and not fuses["attn_flash"].bit
    assert len(fuses) == len(list(fuses)) and "add_norm" in fuses._repr_html_()
    with pytest.raises(KeyError):
        fuses["no_such_fuse"]


def test_verify(model: fusebox.Model, cli: Cli) -> None:
    report = model.verify()
    assert report.ok and str(report) + "\n" == cli("verify")
    assert {row.name for row in report.rows} >= {"add_norm", "all", "auto"}
    assert "verified:" in report._repr_html_()
    exact = model.verify(fuse="attn_flash,add_norm", exact=True, cache="sinks", sinks=2, window=20)
    arguments = ["--fuse", "attn_flash,add_norm", "--exact", "--cache", "sinks", "--sinks", "2", "--window", "20"]
    assert exact.ok and str(exact) + "\n" == cli("verify", *arguments)


@pytest.mark.parametrize("act", ["f32", "f16"])
def test_verify_golden(model: fusebox.Model, cli: Cli, root: Path, act: str) -> None:
    golden = root / "tests/data/golden/storyteller/golden.safetensors"
    report = model.verify(golden, act=act)
    assert isinstance(report, fusebox.GoldenReport) and report.ok
    assert str(report) + "\n" == cli("verify", "--golden", golden, "--act", act)
    assert "logits" in report._repr_html_()


def test_verify_stream(root: Path, cli: Cli) -> None:
    goldens = root / "tests/data/golden"
    golden = goldens / "streaming/llama-gqa-tied.safetensors"
    model = fusebox.Model(goldens / "llama-gqa-tied")
    report = model.verify(golden)
    assert isinstance(report, fusebox.StreamReport) and report.ok
    assert str(report) + "\n" == cli("verify", model.path, "--golden", golden)
    assert "verified:" in report._repr_html_()


def test_plan(model: fusebox.Model, cli: Cli) -> None:
    plan = model.plan(prompt=16, gen=8)
    assert shape(str(plan)) == shape(cli("plan", "--prompt", "16", "--gen", "8").rstrip("\n"))
    assert plan.plain.tpot > 0 and plan.fused.predicted > 0 and {f.name for f in plan.fuses} >= {"add_norm", "step"}
    svg = xml.fromstring(plan.svg())
    assert svg.tag.endswith("svg") and plan._repr_svg_() == plan.svg()
    assert "<svg" in plan._repr_html_() and "<table>" in plan._repr_html_()


def test_profile(model: fusebox.Model, cli: Cli) -> None:
    for prefill, flag in ((False, []), (True, ["--prefill"])):
        profile = model.profile(prompt=16, gen=8, prefill=prefill, fuse="none")
        printed = cli("profile", "--prompt", "16", "--gen", "8", "--fuse", "none", *flag)
        assert shape(str(profile)) == shape(printed.rstrip("\n"))
        assert "<table>" in profile._repr_html_()


def test_bench(model: fusebox.Model, cli: Cli) -> None:
    report = model.bench(["none", "all", "all,-qkv_up"], prompt=8, gen=8, reps=2)
    printed = cli("bench", "--compare", "none,all,all+-qkv_up", "--prompt", "8", "--gen", "8", "--reps", "2")
    assert shape(str(report)) == shape(printed.rstrip("\n"))
    assert report.agree and len(report.variants[1].tpot) == 2 and report.variants[0].tpot_spread.median > 0
    assert "<table>" in report._repr_html_()
    lines = [line.split("[")[0] for line in str(report).splitlines() if line.startswith("all ")]
    assert all(re.match(r"all {8}  \d", line) for line in lines)  # as wide as all+-qkv_up


def test_bench_ops(model: fusebox.Model, cli: Cli) -> None:
    report = model.bench_ops(prompt=8, gen=8, reps=1)
    printed = cli("bench", "--ops", "--prompt", "8", "--gen", "8", "--reps", "1")
    assert shape(str(report)) == shape(printed.rstrip("\n")) and report.agree
    assert "<table>" in report._repr_html_()


@pytest.mark.parametrize("cache, options", [("sinks", ["--window", "20"]), ("dense", [])])
def test_bench_stream(model: fusebox.Model, cli: Cli, cache: str, options: list[str]) -> None:
    window = 20 if options else None
    report = model.bench_stream(cache, gen=100, window=window)  # type: ignore[arg-type]
    printed = cli("bench", "--cache", cache, "--gen", "100", *options)
    assert shape(str(report)) == shape(printed.rstrip("\n"))
    assert "<table>" in report._repr_html_()


def test_devices() -> None:
    """The tests run without a GPU."""
    found = fusebox.devices()
    assert len(found) == 0 and found.why_not and str(found).startswith("no device: ")


# ---- perplexity ----------------------------------------------------------------------------------------------

STORY = "Once upon a time there was a little girl. She had a red ball and she liked to play with it in the park. " * 9


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(STORY)
    return path


def test_ppl(model: fusebox.Model, cli: Cli, story: Path) -> None:
    report = model.ppl(STORY, ctx=100)
    printed = cli("ppl", "-f", story, "--ctx", "100")
    assert str(report).splitlines()[:2] == printed.splitlines()[:2] and shape(str(report)) == shape(printed.rstrip())
    assert report.all.tokens == sum(window.tokens for window in report.windows)
    assert report.perplexity == pytest.approx(math.exp(report.all.nll)) and report.window == 100
    assert "<table>" in report._repr_html_()
    halves = model.ppl(STORY, ctx=100, compat="llama.cpp", chunks=1)
    printed = cli("ppl", "-f", story, "--ctx", "100", "--compat", "llama.cpp", "--chunks", "1")
    assert str(halves).splitlines()[:3] == printed.splitlines()[:3] and len(halves.windows) == 1
    with pytest.raises(fusebox.UsageError, match="compat"):
        model.ppl(STORY, compat="vllm")
    ids = model.tokenize(STORY, special=False)
    assert model.ppl(ids, ctx=100).all.nll == report.all.nll == model.ppl(STORY.encode(), ctx=100).all.nll
    # The same number from logits: the first window has the begin token and 99 others, each of which is scored.
    window = [*model.tokenize(""), *ids][:100]
    logits = model.logits(window).astype("float64")
    nll = sum(math.log(sum(math.exp(x) for x in logits[k])) - logits[k][window[k + 1]] for k in range(99)) / 99
    assert report.windows[0].tokens == 99 and report.windows[0].nll == pytest.approx(nll, rel=1e-5)


def test_ppl_stream(model: fusebox.Model, cli: Cli, story: Path) -> None:
    report = model.ppl(STORY, cache=["dense", "window", "sinks"], sinks=2, window=30, every=64)
    options = ["--cache", "dense,window,sinks", "--sinks", "2", "--window", "30", "--every", "64"]
    printed = cli("ppl", "-f", story, *options).splitlines()
    assert str(report).splitlines()[:-1] == printed[:-1] and shape(str(report)) == shape("\n".join(printed))
    assert [(curve.cache, curve.sinks, curve.window) for curve in report.curves][1:] == [
        ("window", 0, 32),
        ("sinks", 2, 30),
    ]
    assert sum(row.tokens for row in report.rows) == report.tokens
    assert xml.fromstring(report.svg()).tag.endswith("svg") and "<table>" in report._repr_html_()
    assert model.ppl(STORY, cache="dense,window,sinks", sinks=2, window=30, every=64).rows == report.rows


def test_ppl_is_refused(model: fusebox.Model) -> None:
    for options, message in (
        ({"ctx": 1}, "ctx: 1 "),
        ({"ctx": 513}, "513"),
        ({"every": 3}, "every: 3 .only with cache"),
        ({"cache": "dense", "ctx": 9}, "ctx: 9 .not with cache"),
        ({"cache": "dense,dense"}, "cache: dense .twice"),
        ({"cache": "dense", "sinks": 4}, "sinks: 4 .only with"),
        ({"cache": "dense", "window": 4}, "window: 4 .only with"),
        ({"cache": "lossy"}, "lossy"),
    ):
        with pytest.raises(fusebox.UsageError, match=message):
            model.ppl(STORY, **options)
    with pytest.raises(fusebox.Error, match="0"):
        model.ppl("")
    with pytest.raises(TypeError, match="colour"):
        model.ppl(STORY, colour=1)  # type: ignore[call-overload]


# ---- quantisation --------------------------------------------------------------------------------------------


def test_quantize(model: fusebox.Model, cli: Cli, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    report = model.quantize(ours, "q4_0", head="q8_0")
    printed = cli("quantize", model.path, theirs, "--type", "q4_0", "--keep-head", "q8_0")
    assert str(report) + "\n" == printed.replace(str(theirs), str(ours))
    assert ours.read_bytes() == theirs.read_bytes() and report.file_bytes == ours.stat().st_size
    assert {kind.type for kind in report.kinds} == {"f32", "q4_0", "q8_0"} and 4.5 < report.bits_per_weight < 9
    assert "<table>" in report._repr_html_()
    with pytest.raises(fusebox.Error, match="ours.gguf"):
        model.quantize(ours)
    assert ours.read_bytes() == theirs.read_bytes()
    assert model.quantize(ours, replace=True).bits_per_weight > 8.5
    small = fusebox.Model(ours)
    plain, less = model.ppl(STORY, ctx=64).perplexity, small.ppl(STORY, ctx=64).perplexity
    assert plain != less and less == pytest.approx(plain, rel=0.05)
    mixed = model.quantize(ours, "q4_K_M", replace=True)
    cli("quantize", model.path, theirs, "--type", "Q4_K_M", "--force")
    assert ours.read_bytes() == theirs.read_bytes()
    assert {kind.type for kind in mixed.kinds} == {"f32", "q4_k", "q6_k"} and 5 < mixed.bits_per_weight < 5.5
    book = tmp_path / "book.txt"
    book.write_text(STORY * 4)
    model.quantize(ours, "q4_0", calibrate=STORY * 4, replace=True)
    cli("quantize", model.path, theirs, "--type", "q4_0", "--calibrate", book, "--force")
    assert ours.read_bytes() == theirs.read_bytes()
    model.quantize(ours, "q4_0", head="q4_0", calibrate=STORY * 4, replace=True)
    assert ours.stat().st_size < theirs.stat().st_size
    plain_scales = model.quantize(tmp_path / "plain.gguf", "q4_0")
    assert plain_scales.file_bytes == ours.stat().st_size and (tmp_path / "plain.gguf").read_bytes() != ours.read_bytes()
    names = [lib.fb_quantize_name(i).decode() for i in range(21)]
    assert set(names) == {*get_args(QuantizedType), *get_args(QuantizedMix)} and lib.fb_quantize_name(21) is None
    for bad in ("q4_k_x", "f64", "nothing"):
        with pytest.raises(fusebox.Error, match=bad):
            model.quantize(tmp_path / "bad.gguf", bad)  # type: ignore[arg-type]
    assert not (tmp_path / "bad.gguf").exists()
