"""The CUDA backend, by the library that emulates a device on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import sys, fusebox
if len(sys.argv) > 1:
    fusebox.cuda_library(sys.argv[1])
devices = fusebox.devices()
print(devices)
assert len(devices) == 1 and not devices[0].why_not
text = fusebox.Model().generate("Once upon", max_tokens=4, temperature=0, backend="cuda")
assert text.stats.backend == "cuda" and text.stats.threads == 0
print(text)
try:
    fusebox.cuda_library(fusebox.__file__)
except fusebox.UsageError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("by_variable", [True, False])
def test_emulated(build: Path, tmp_path: Path, model: object, by_variable: bool) -> None:
    library = build / "tests" / "libfusebox_cuda_emulated.so"
    if not library.is_file():
        pytest.skip("no libfusebox_cuda_emulated.so: make tests builds it")
    environment = {name: value for name, value in os.environ.items() if name != "FUSEBOX_CUDA_LIBRARY"}
    if by_variable:
        environment["FUSEBOX_CUDA_LIBRARY"] = str(library)
    command = [sys.executable, "-c", SOURCE, *([] if by_variable else [str(library)])]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "Emulated GPU" in lines[0] and lines[1] == " a time, and" and lines[2].startswith("refused:")
