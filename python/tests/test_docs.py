"""Every block of docs/python.md and every example runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

PAGE = (ROOT / "docs/python.md").read_text()


def blocks(language: str) -> list[tuple[int, str]]:
    """Line and text of each block."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [(PAGE[: match.start(1)].count("\n") + 1, match.group(1)) for match in found]


# What a block needs, by a word in it.
NEEDS = {"ops": "torch", "hf": "transformers"}


def has(module: str) -> bool:
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None  # tests/torch is a folder of that name


def words(table: str) -> list[list[str]]:
    """Lines without numbers that have a dot."""
    return [[word for word in line.split() if not re.match(r"\d+\.", word)] for line in table.splitlines()]


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(blocks("python")) > 10
    for line, source in blocks("python"):
        if any(re.search(rf"\b{word}\b", source) and not has(module) for word, module in NEEDS.items()):
            continue
        code = compile("\n" * (line - 1) + source, "docs/python.md", "exec")
        exec(code, names)
    out = capsys.readouterr().out
    assert "verified:" in out and "no/such/model" in out
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    if has("transformers"):
        # The report of fuse on the page has today's columns, fuses, classes and calls; digits differ by machine.
        shown = next(source for _, source in blocks("text") if source.startswith("fuse "))
        printed = out[out.index(shown.splitlines()[0]) :]
        assert words(printed)[: len(words(shown))] == words(shown)
        assert "{'rope_kv': 8, 'down_add': 8}" in out and "one unpadded sequence a row': 1}" in out


def test_shell(tmp_path: Path) -> None:
    """What installs is tested with the wheel; the rest runs in the environment of the tests."""
    ran = 0
    for _, source in blocks("sh"):
        for line in source.splitlines():
            words = shlex.split(line)
            if words[:3] == ["python", "-m", "fusebox"] or words[0] == "fusebox":
                program = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
                subprocess.run(program, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
                ran += 1
            elif words[0] == "python":  # torch/test_examples.py runs them
                assert words[1].startswith("examples/python/") and (ROOT / words[1]).is_file(), line
            else:
                assert words[0] in ("python3", ".", "pip"), line
    assert ran == 2


def test_every_block_is_one_of_these() -> None:
    fences = re.findall(r"^```(\w*)$", PAGE, re.MULTILINE)
    assert set(fences[::2]) == {"python", "sh", "text"} and set(fences[1::2]) == {""}


def test_generate_example(tmp_path: Path) -> None:
    example = ROOT / "examples/python/generate.py"
    done = subprocess.run(
        [sys.executable, str(example), "Once upon"], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.startswith("Once upon") and "per token" in done.stdout
