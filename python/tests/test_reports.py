"""Reports print the tables of the command line."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

import fusebox
from conftest import Cli


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
