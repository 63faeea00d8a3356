"""Continues a text, piece by piece, and says how fast.

    pip install ./python
    python examples/python/generate.py "Once upon a time"
    python examples/python/generate.py "Once upon a time" path/to/model
"""

from __future__ import annotations

import sys

import fusebox


def main() -> None:
    prompt = sys.argv[1] if len(sys.argv) > 1 else "Once upon a time"
    model = fusebox.Model(sys.argv[2] if len(sys.argv) > 2 else None)
    stream = model.stream(prompt, max_tokens=120, seed=1)
    print(prompt, end="", flush=True)
    for piece in stream:
        print(piece, end="", flush=True)
    print("\n")
    print(stream.stats)


if __name__ == "__main__":
    main()
