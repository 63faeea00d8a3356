"""``python -m fusebox ARGS…`` is the command line: this process becomes the program of the package."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._c import FILES


def main() -> NoReturn:
    program = str(FILES / "bin" / "fusebox")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(program, ["fusebox", *sys.argv[1:]])


if __name__ == "__main__":
    main()
