"""Builds the C library by the project's Makefile and puts it into the package. pyproject.toml has the rest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "include" / "fusebox.h"
BUILD = Path(ROOT, os.environ.get("BUILD", "build"))  # of make

if not HEADER.is_file() or not (ROOT / "Makefile").is_file():
    sys.exit(
        f"fusebox: {ROOT}: no Makefile and include/fusebox.h (the package is built from a checkout of the "
        "repository: pip install ./python in its root)"
    )


def version() -> str:
    found = re.search(r'^#define FB_VERSION\s+"(.*)"', HEADER.read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"fusebox: {HEADER}: no FB_VERSION")
    return found.group(1)


def make_files() -> Path:
    """lib/, bin/, include/ and share/ of the package."""
    # Not the flags of a make that called pip: its job slots are not ours.
    environment = dict(os.environ)
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        environment.pop(name, None)
    jobs = f"-j{os.cpu_count() or 1}"
    command = ["make", "-C", str(ROOT), "--no-print-directory", jobs, f"BUILD={BUILD}", "python-files"]
    try:
        subprocess.run(command, check=True, env=environment)
    except FileNotFoundError:
        sys.exit("fusebox: make: not found (install make and a C compiler)")
    except subprocess.CalledProcessError as error:
        sys.exit(f"fusebox: make python-files: exit status {error.returncode} (its output is above)")
    return BUILD / "python" / "files"


class BuildPy(build_py):
    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)  # files that are gone must not come back
        super().run()
        files = make_files()
        if not self.editable_mode:  # an editable installation uses the build folder itself
            shutil.copytree(files, Path(self.build_lib, "fusebox"), dirs_exist_ok=True)


class BdistWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Any Python 3, this platform: there is no extension module."""
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


SETUPTOOLS = BUILD / "python" / "setuptools"
SETUPTOOLS.mkdir(parents=True, exist_ok=True)

setup(
    version=version(),
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel},
    # Nothing is written into the source tree.
    options={"build": {"build_base": str(SETUPTOOLS)}, "egg_info": {"egg_base": str(SETUPTOOLS)}},
)
