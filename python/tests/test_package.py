"""The wheel: its content, and an installation into a fresh environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import fusebox
from conftest import Cli
from fusebox._c import FILES


@pytest.fixture(scope="module")
def wheel(build: Path) -> Path:
    wheels = list((build / "python" / "wheel").glob("fusebox-*.whl"))
    if len(wheels) != 1:
        pytest.skip("no wheel: make test-python builds it")
    return wheels[0]


def test_content(wheel: Path, root: Path) -> None:
    assert wheel.name == f"fusebox-{fusebox.__version__}-py3-none-{wheel.stem.split('-')[-1]}.whl"
    assert wheel.stem.endswith(os.uname().machine)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        mode = file.getinfo("fusebox/bin/fusebox").external_attr >> 16
    assert mode & 0o111
    wanted = {"py.typed", "lib/libfusebox.so", "bin/fusebox"}
    wanted |= {f"include/{path.name}" for path in (root / "include").glob("*.h")}
    wanted |= {f"share/fusebox/models/storyteller/{p.name}" for p in (root / "models/storyteller").iterdir()}
    sources = root / "python/src/fusebox"
    wanted |= {path.relative_to(sources).as_posix() for path in sources.rglob("*.py")}
    in_package = {name.removeprefix("fusebox/") for name in names if name.startswith("fusebox/")}
    assert in_package - {"lib/libfusebox_cuda.so"} == wanted


def test_no_development_packages_at_run_time() -> None:
    """The library and the program contain PCRE2 and utf8proc where the system has static ones."""
    static = [
        Path(subprocess.run(["cc", f"-print-file-name=lib{name}.a"], stdout=subprocess.PIPE, text=True).stdout.strip())
        for name in ("pcre2-8", "utf8proc")
    ]
    if not all(path.is_file() for path in static):
        pytest.skip("no static PCRE2 and utf8proc here")
    for file in (FILES / "lib/libfusebox.so", FILES / "bin/fusebox"):
        needed = subprocess.run(["readelf", "-d", file], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert "NEEDED" in needed
        assert not any(name in needed for name in ("pcre2", "utf8proc", "libedit", "tinfo"))
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", FILES / "lib/libfusebox.so"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert all(line.split()[-1].startswith("fb_") for line in exported.splitlines())


def test_fresh_environment(wheel: Path, tmp_path: Path, cli: Cli) -> None:
    """Installed from the wheel alone, without numpy and torch, used from an empty folder."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", str(wheel)], check=True
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    source = (
        "import sys, fusebox; print(fusebox.Model().generate('Once upon a time', max_tokens=20, seed=1));"
        "assert not {'numpy', 'torch'} & set(sys.modules)"
    )
    wanted = cli("run", "-p", "Once upon a time", "-n", "20", "--seed", "1")
    commands: list[list[str | Path]] = [
        [python, "-c", source],
        [python, "-m", "fusebox", "run", "-p", "Once upon a time", "-n", "20", "--seed", "1"],
        [tmp_path / "venv/bin/fusebox", "run", "-p", "Once upon a time", "-n", "20", "--seed", "1"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=empty, stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout == wanted
    assert list(empty.iterdir()) == []
    without = subprocess.run(
        [python, "-c", "import fusebox; fusebox.Model().logits([1])"], cwd=empty, stderr=subprocess.PIPE, text=True
    )
    assert "No module named 'numpy'" in without.stderr


def test_status_of_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "fusebox", "no-such-command"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.startswith("fusebox: unknown command: no-such-command")


def test_outside_of_the_repository(root: Path, tmp_path: Path) -> None:
    """A copy of python/ alone says what is missing."""
    shutil.copytree(root / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=tmp_path / "python", stderr=subprocess.PIPE, text=True
    )
    assert done.returncode != 0 and "is built from a checkout of the repository" in done.stderr


def test_nothing_is_written_into_the_source_tree(root: Path) -> None:
    assert not (root / "python/build").exists()
    assert not list((root / "python").rglob("*.egg-info"))
