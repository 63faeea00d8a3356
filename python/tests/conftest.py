"""What the tests share: the built-in model, the command line of the package, the repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

import fusebox
from fusebox._c import FILES

ROOT = Path(__file__).resolve().parents[2]

Cli = Callable[..., str]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def build() -> Path:
    return Path(os.environ.get("BUILD", ROOT / "build"))


@pytest.fixture(scope="session")
def model() -> fusebox.Model:
    return fusebox.Model()


@pytest.fixture(scope="session", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The planner's measurements of these tests, for Python and the command line alike."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """A shell that starts the tests in the background ignores SIGINT for them and for the programs that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Runs the command line of the package and returns its output."""

    def run(*arguments: str | os.PathLike[str]) -> str:
        command = [FILES / "bin" / "fusebox", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True, timeout=120)
        return done.stdout.decode()

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Starts Python source in a process of its own, in an empty folder."""

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        path = tmp_path / "script.py"
        path.write_text(source)
        return subprocess.Popen(
            [sys.executable, str(path), *arguments],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
