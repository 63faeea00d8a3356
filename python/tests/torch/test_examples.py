"""Each example runs as a script and prints the rows it should; a fault ends it before anything is timed."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from conftest import ROOT  # noqa: E402

FOLDER = ROOT / "examples/python"
QUICK = ("--rows", "2", "--budget", "0.01")
# Inductor's compilations take longer than everything else together.
COMPILE = ("--compile", "aot_eager")
STREAM = ("--window", "124", "--block", "62", "--tokens", "24", "--rounds", "1", "--threads", "1", "--no-pythia")
ARGUMENTS = {
    "layer_norm_residual": (*QUICK, "--width", "64", *COMPILE),
    "mlp_strategies": (*QUICK, "--outputs", "96", "--inputs", "64", *COMPILE),
    "q4_0_fused_quantise": (*QUICK, "--outputs", "96", "--inputs", "64"),
    "triton_comparison": (*QUICK, "--width", "64"),
    "gpt_neox_streaming": (*STREAM, "--read", "600"),
}
STRATEGIES = ("fusebox vector", "fusebox accumulator", "fusebox dual")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

# Runs several scripts in one process, since most of the time goes into imports and the measured bandwidth.
DRIVER = """
import contextlib, pathlib, runpy, sys
folder, out, *lines = sys.argv[1:]
sys.path[0] = folder
for line in lines:
    name, *arguments = line.split()
    sys.argv = [name, *arguments, "--out", out]
    with open(pathlib.Path(out) / f"{name}.txt", "w") as file, contextlib.redirect_stdout(file):
        try:
            runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
        except SystemExit as end:
            print("exit status", end.code)
"""

Load = Callable[[str], Any]
Ran = tuple[str, Path]


@pytest.fixture(scope="module", params=DEVICES)
def ran(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All scripts have run, where they see no GPU or where they may use it. The device, and what they wrote."""
    environment = dict(os.environ)
    if request.param == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    elif environment.get("FUSEBOX_CUDA_LIBRARY") == "none":  # as run.sh sets it for what is not about the GPU
        del environment["FUSEBOX_CUDA_LIBRARY"]
    out = tmp_path_factory.mktemp("examples")
    lines = [" ".join((name, *arguments)) for name, arguments in ARGUMENTS.items()]
    subprocess.run([sys.executable, "-c", DRIVER, str(FOLDER), str(out), *lines], env=environment, cwd=out, check=True)
    return str(request.param), out


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports an example, which then sees no GPU and must not time anything."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def no_price(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("timed before the checks were through")

    def load(name: str) -> Any:
        monkeypatch.setattr(importlib.import_module("report"), "price", no_price)
        return importlib.import_module(name)

    yield load
    torch.set_num_threads(threads)
    for module in [m for m in sys.modules.values() if str(getattr(m, "__file__", "")).startswith(str(FOLDER))]:
        del sys.modules[module.__name__]


def read(name: str, ran: Ran) -> tuple[str, list[dict[str, str]]]:
    """The output of a script, and the rows of its table by column. What it wrote must be what it printed."""
    device, out = ran
    text = (out / f"{name}.txt").read_text()
    assert text.endswith("exit status 0\n")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    table = [dict(zip(lines[0], line)) for line in lines[2:]]
    assert all(len(line) == len(lines[0]) == len(set(lines[0])) for line in lines)

    page = (out / f"{name}.md").read_text()
    assert [line for line in page.splitlines() if line[:1] == "|"] == [x for x in text.splitlines() if x[:1] == "|"]
    pictures = re.findall(r"!\[.*\]\((.*)\)", page)
    bars = 0
    for picture in pictures:
        root = ElementTree.parse(out / picture).getroot()
        bars += len(root.findall("{http://www.w3.org/2000/svg}rect")) - 1  # one is the background
    assert pictures and bars == len(table)
    cpu = "graph us" not in table[0]
    assert cpu == (device == "cpu")
    for row in table:
        row["low"], row["high"] = row["10% to 90%"].split(" to ")
        assert float(row["floor us"]) > 0.0 and row["of floor"].endswith("%")
        low, median, high = (float(row[name]) for name in ("low", "called us" if cpu else "graph us", "high"))
        assert 0.0 < low <= median <= high and float(row["called us"]) > 0.0
    return text, table


def test_layer_norm_residual(ran: Ran) -> None:
    text, table = read("layer_norm_residual", ran)
    shapes = ["layer_norm_residual [2, 64]", "add_norm [2, 64]"]
    ways = ["eager", "torch.compile", "fusebox"]
    assert [(row["op"], row["by"]) for row in table] == [(shape, by) for shape in shapes for by in ways]
    assert text.count(": proven: ") == 2
    for row in table:
        assert row["by"] != "eager" or row["x eager"] == "1.00"
        assert row["by"] != "torch.compile" or row["x compiled"] == "1.00"
    item = 4 if "float32" in text else 2
    assert [table[i]["bytes"] for i in (2, 5)] == [size(item * (n * 128 + 128)) for n in (3, 4)]


def test_mlp_strategies(ran: Ran) -> None:
    text, table = read("mlp_strategies", ran)
    assert [row["by"] for row in table] == ["eager", "torch.compile", *STRATEGIES]
    assert {row["rows"] for row in table} == {"2"} and text.count("identical to dual") == 2
    item = 4 if "float32" in text else 2
    weights, x, out = 2 * 96 * 64, 2 * 64, 2 * 96
    counts = [2 * x + 7 * out, x + out, 2 * x + 5 * out, 2 * x + 5 * out, x + out]
    assert [row["bytes"] for row in table] == [size(item * (weights + count)) for count in counts]
    fused = [row for row in table if row["by"] in STRATEGIES]
    assert len({(row["max error"], row["rms error"]) for row in fused}) == 1
    assert all(0.0 < float(row["rms error"]) <= float(row["max error"]) < 0.01 for row in table)


def test_q4_0_fused_quantise(ran: Ran) -> None:
    text, table = read("q4_0_fused_quantise", ran)
    ways = ["fusebox inside", "fusebox separate", "float16 linear"]
    assert [(row["projections"], row["by"]) for row in table] == [(count, by) for count in "13" for by in ways]
    assert text.count("proven: identical to inside") == 2
    weights, x, blocks, out = 96 * 2 * 18, 2 * 64 * 2, 2 * 2 * 40, 2 * 96 * 2
    counts = [weights + x + out, weights + x + 2 * blocks + out, 96 * 64 * 2 + x + out]
    counts += [3 * (weights + x + out), 3 * weights + x + 4 * blocks + 3 * out, 3 * counts[2]]
    assert [row["bytes"] for row in table] == list(map(size, counts))
    last = re.findall(r"^- 2 rows, (\d) projections?: (.*) \(", text, re.MULTILINE)
    said = ("no difference beyond the spread", "inside wins", "separate wins")
    assert [count for count, _ in last] == ["1", "3"] and all(sentence in said for _, sentence in last)


def test_triton_comparison(ran: Ran) -> None:
    text, table = read("triton_comparison", ran)
    gpu = ran[0] == "cuda"
    assert gpu or text.count("Triton: left out, there is no GPU\n") == 1
    ways = ["eager", "fusebox", *(["Triton"] if gpu else [])]
    names = ("layer_norm_residual", "silu_mul", "add3")
    assert [(row["op"], row["by"]) for row in table] == [(f"{name} [2, 64]", by) for name in names for by in ways]


def tables(text: str) -> list[list[dict[str, str]]]:
    """The rows of each table by column."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line[:1] == "|":
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [[dict(zip(lines[0], line)) for line in lines[2:]] for lines in found if lines]


def test_gpt_neox_streaming(ran: Ran) -> None:
    text = (ran[1] / "gpt_neox_streaming.txt").read_text()
    assert text.endswith("exit status 0\n")
    perplexities, times = tables(text)
    assert tables((ran[1] / "gpt_neox_streaming.md").read_text()) == [perplexities, times]
    assert [row["cache"].split(",")[0] for row in perplexities] == ["dense", "window", "4 sinks + window"]
    for row in perplexities:
        # PyTorch adds in an order that depends on the processor: the last of four decimals may be the next one.
        assert abs(float(row["first 512, plain"]) - float(row["first 512, fused"])) < 1.5e-4
    dense, window, sinks = ({name: float(row[name]) for name in list(row)[1:]} for row in perplexities)
    assert dense["first 512, plain"] < sinks["first 512, plain"] < window["first 512, plain"]
    assert sinks["beyond, fused"] < window["beyond, fused"]
    found = re.search(r"(\d+) steps, (\d+) different tokens. In (\d+) steps", text)
    assert found and found[1] == "24" and int(found[2]) > 10 and int(found[3]) >= 20
    assert "Late: 624 tokens, 1.2 times the context of 512; the cache holds" in text
    order = [(layers, when) for when in ("early", "late") for layers in ("plain", "fused")]
    assert [(row["layers"], row["in the stream"]) for row in times] == order
    for row in times:
        low, high = map(float, row["10% to 90%"].split(" to "))
        assert 0.0 < low <= float(row["median ms"]) <= high


def size(count: int) -> str:
    """As the examples print bytes."""
    return f"{count / 1e3:.3g} kB" if count >= 1000 else f"{count} B"


def fails(load: Load, capsys: Any, name: str, why: str) -> None:
    """The script ends with 1 and says why, and has timed nothing."""
    assert load(name).main(ARGUMENTS[name]) == 1
    err = capsys.readouterr().err
    assert err.startswith("FAILED: ") and re.search(why, err), err


def spoiled(value: Any) -> Any:
    """The last element moved to the next number: the smallest fault there is."""
    value = value.clone()
    last = value.view(-1)[-1:]
    last.copy_(torch.nextafter(last.float(), last.float() + 1.0) if value.dtype == torch.float32 else last * 1.01)
    return value


def test_a_residual_in_the_wrong_place(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = load("layer_norm_residual")
    norm = torch.nn.functional.layer_norm
    monkeypatch.setattr(
        module.ops, "layer_norm_residual", lambda x, r, w, b, eps: norm(x + r, (x.shape[-1],), w, b, eps)
    )
    fails(load, capsys, "layer_norm_residual", "WRONG")


def test_a_norm_of_the_wrong_sum(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = load("layer_norm_residual")
    norm = torch.nn.functional.layer_norm
    monkeypatch.setattr(module, "OPS", module.OPS[1:])
    wrong = lambda terms, w, b, eps: (terms[0] + terms[1], norm(terms[0], w.shape, w, b, eps))  # noqa: E731
    monkeypatch.setattr(module.ops, "add_norm", wrong)
    fails(load, capsys, "layer_norm_residual", "WRONG")


def test_a_compiler_that_is_wrong(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    load("layer_norm_residual")
    shared = sys.modules["report"]
    monkeypatch.setattr(shared, "compiled", lambda fn, backend, inputs: lambda *given: 1.01 * fn(*given))
    fails(load, capsys, "layer_norm_residual", "torch.compile: .*error")


def test_strategies_that_differ(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Dual without silu is wrong; vector with one other bit is not dual; a wrong formula is not what is counted."""
    module = load("mlp_strategies")
    swiglu, linear = module.ops.swiglu, torch.nn.functional.linear
    monkeypatch.setattr(module.ops, "swiglu", lambda x, w1, w3, strategy: linear(x, w1) * linear(x, w3))
    fails(load, capsys, "mlp_strategies", "WRONG")

    def one_bit(x: Any, w1: Any, w3: Any, strategy: str) -> Any:
        out = swiglu(x, w1, w3, strategy=strategy)
        return spoiled(out) if strategy == "vector" and out.numel() else out

    monkeypatch.setattr(module.ops, "swiglu", one_bit)
    fails(load, capsys, "mlp_strategies", "WRONG")
    with pytest.raises(module.CheckFailed, match="moves 1 bytes by its operators, 5504 by"):
        x, w1 = torch.ones(2, 32), torch.ones(16, 32)
        module.check_count(1, (x, w1, w1))


def test_quantised_products_that_differ(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One way with other bits; and both ways with the same wrong values."""
    module = load("q4_0_fused_quantise")
    product = module.ops.linear_q4_0

    def one_way(x: Any, weight: Any, **options: Any) -> Any:
        out = product(x, weight, **options)
        return out if isinstance(x, torch.Tensor) or not out.numel() else spoiled(out)

    monkeypatch.setattr(module.ops, "linear_q4_0", one_way)
    fails(load, capsys, "q4_0_fused_quantise", "WRONG")
    monkeypatch.setattr(module.ops, "linear_q4_0", lambda x, weight, **options: 1.05 * product(x, weight, **options))
    fails(load, capsys, "q4_0_fused_quantise", r"linear_q4_0: rms error 5\.\d*e-02")


def test_a_sum_that_forgets(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    module = load("triton_comparison")
    monkeypatch.setattr(module, "OPS", module.OPS[2:])
    monkeypatch.setattr(module.ops, "add3", lambda a, b, c: a + b)
    fails(load, capsys, "triton_comparison", "WRONG")


def untimed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*arguments: Any) -> Any:
        raise AssertionError("timed before the checks were through")

    monkeypatch.setattr(module, "times", times)


def test_keys_that_are_not_rotated_back(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Not at all, or too far by one: the keys tell. Without that check, the perplexity of the stream does."""
    module = load("gpt_neox_streaming")
    untimed(module, monkeypatch)
    right = module.rotate_back
    why = "window, 128 tokens, plain: keys of the first layer are off by"
    monkeypatch.setattr(module, "rotate_back", lambda keys, frequencies, distance: keys)
    fails(load, capsys, "gpt_neox_streaming", why)
    monkeypatch.setattr(module, "rotate_back", lambda keys, frequencies, by: right(keys, frequencies, by + 1))
    fails(load, capsys, "gpt_neox_streaming", why)
    monkeypatch.setattr(module, "rotate_back", lambda keys, frequencies, distance: keys)
    monkeypatch.setattr(module, "check_cache", lambda name, stream: None)
    fails(load, capsys, "gpt_neox_streaming", r"4 sinks \+ window, 128 tokens: perplexity \d{3,}")


def test_a_stream_with_other_layers(load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Fused layers of another model; and a model whose layers are not fused at all."""
    module = load("gpt_neox_streaming")
    untimed(module, monkeypatch)
    sharing, fuse = module.sharing, module.fuse

    def other(model: Any) -> Any:
        made = sharing(model)
        made.gpt_neox.final_layer_norm.weight = torch.nn.Parameter(1.5 * model.gpt_neox.final_layer_norm.weight)
        return made

    monkeypatch.setattr(module, "sharing", other)
    fails(load, capsys, "gpt_neox_streaming", "dense, .*: perplexity .* with plain")
    monkeypatch.setattr(module, "perplexities", lambda *arguments: None)
    fails(load, capsys, "gpt_neox_streaming", "only 0 of 24 steps have a clear winner|another token")

    def unfused(model: Any) -> Any:
        done = fuse(model)
        done.undo()
        return done

    monkeypatch.setattr(module, "sharing", sharing)
    monkeypatch.setattr(module, "fuse", unfused)
    fails(load, capsys, "gpt_neox_streaming", "steps or layers kept the original forward: all")


def test_a_large_stream(load: Load, capsys: Any) -> None:
    """What runs at Pythia-2.8B's shape where there is a GPU."""
    module = load("gpt_neox_streaming")
    small = dict(vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    module.PYTHIA.update(small, max_position_embeddings=256)
    options = module.argparse.Namespace(tokens=20, rounds=1, threads=1, out=None)
    with torch.no_grad():
        module.pythia(module.Report("large", "large", options), "cpu", options)
    out = capsys.readouterr().out
    assert "Late: 788 tokens, 3.1 times the context of 256; the cache holds" in out and len(tables(out)[0]) == 4


def test_triton_kernels_in_its_interpreter(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks a row and rows with gaps: to the bit where torch's exp is not involved."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module = load("triton_comparison")
    a, b, c = (torch.randn(3, 1103, generator=torch.Generator().manual_seed(i)).half()[:, :1100] for i in range(3))
    assert torch.equal(module.launch(module._add3, a, b, c), (a + b) + c)
    product = module.launch(module._silu_mul, a, b)
    exact = torch.nn.functional.silu(a.double()) * b.double()
    assert product.shape == a.shape and bool(((product - exact).abs() <= exact.abs() * 2.0**-10 + 1e-7).all())
    with pytest.raises(ValueError, match="input 1 has shape"):
        module.launch(module._add3, a, b.T.contiguous().T, c)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("layer_norm_residual", ("--rows", "1,0"), r"--rows: '0' \(from 1 to 1048576\)"),
        ("layer_norm_residual", ("--width", "many"), "--width: 'many'"),
        ("layer_norm_residual", ("--threads", "257"), r"--threads: '257' \(from 1 to 256\)"),
        ("mlp_strategies", ("--outputs", "-1"), "--outputs: '-1'"),
        ("mlp_strategies", ("--budget", "nan"), "--budget: 'nan' .*up to 600"),
        ("q4_0_fused_quantise", ("--inputs", "33"), "--inputs: 33 .*multiple of 32"),
        ("triton_comparison", ("--dtype", "float64"), "--dtype: invalid choice: 'float64'"),
        ("gpt_neox_streaming", ("--sinks", "-1"), r"--sinks: '-1' \(from 1"),
        ("gpt_neox_streaming", ("--block", "127"), r"--block: 127 \(at most half of --window: 252\)"),
        ("gpt_neox_streaming", ("--text", "no/such"), "--text: 'no/such' .*no such file"),
    ],
)
def test_arguments(load: Load, capsys: Any, name: str, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        load(name).main(arguments)
    assert stop.value.code == 2 and re.search(message, capsys.readouterr().err)


def test_every_example_is_documented(ran: Ran) -> None:
    """And the output that the page shows has today's columns, which on a GPU are others."""
    page = (ROOT / "docs/python.md").read_text()
    shown = re.findall(r"^```text\n\|(.*)\|$", page, re.MULTILINE)
    printed = re.findall(r"^\|(.*)\|$", (ran[1] / "q4_0_fused_quantise.txt").read_text(), re.MULTILINE)
    assert ran[0] == "cuda" or shown[0].replace(" ", "") == printed[0].replace(" ", "")
    for path in FOLDER.glob("*.py"):
        assert path.name == "report.py" or f"examples/python/{path.name}" in page, path.name
