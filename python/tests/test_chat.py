"""Chat templates, as the command line renders them, beside jinja2 with the settings of transformers."""

from __future__ import annotations

import datetime
import json
import runpy
from pathlib import Path

from conftest import Cli

CONVERSATIONS = ["system", "several turns", "hostile", "tools", "thinking"]


def test_templates(cli: Cli, root: Path, tmp_path: Path) -> None:
    corpus = runpy.run_path(str(root / "tests" / "chat" / "make_expected.py"))
    env = corpus["environment"]()
    env.globals["strftime_now"] = datetime.datetime.now().strftime
    checked = 0
    for name, template, variables in corpus["family_cases"]():
        try:
            wanted = env.from_string(template).render(**variables)
        except Exception:
            continue  # the corpus of the C tests has the refusals
        if name.split(": ")[1] not in CONVERSATIONS:
            continue
        extra = {key: value for key, value in variables.items() if key not in ("messages", "tools")}
        (tmp_path / "template.jinja").write_text(template)
        (tmp_path / "messages.json").write_text(json.dumps(variables["messages"]))
        (tmp_path / "tools.json").write_text(json.dumps(variables["tools"]))
        tools = ["--tools", tmp_path / "tools.json"] if variables["tools"] else []
        got = cli("chat", "--render", tmp_path / "messages.json", "--template", tmp_path / "template.jinja",
                  "--variables", json.dumps(extra), *tools)
        assert got == wanted, name
        checked += 1
    assert checked >= 40
