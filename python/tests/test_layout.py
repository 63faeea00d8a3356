"""The ctypes declarations against the headers and the C compiler."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fusebox import _c, _c_batch, _c_draft, _c_ops, _c_text, _c_tools

INCLUDE = _c.FILES / "include"
HEADERS = (
    "fusebox.h",
    "fusebox_batch.h",
    "fusebox_bench.h",
    "fusebox_ops.h",
    "fusebox_quantize.h",
    "fusebox_tools.h",
)
MODULES = (_c, _c_tools, _c_text, _c_ops, _c_batch, _c_draft)
STRUCTS = [struct for module in MODULES for struct in module.STRUCTS]
FUNCTIONS = {name: types for module in MODULES for name, types in module.FUNCTIONS.items()}


def header_text() -> str:
    whole = "".join((INCLUDE / name).read_text() for name in HEADERS)
    return re.sub(r"/\*.*?\*/", " ", whole, flags=re.DOTALL)


def test_every_struct_is_compared() -> None:
    declared = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and name.startswith("fb_")
    }
    assert declared == {struct.__name__ for struct in STRUCTS}


def test_sizes_and_offsets(tmp_path: Path) -> None:
    lines = []
    wanted = {}
    for struct in STRUCTS:
        name = struct.__name__
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        wanted[name] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            member = f"(({name} *)0)->{field}"
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            lines.append(f'printf("sizeof {name}.{field} %zu\\n", sizeof({member}));')
            wanted[f"{name}.{field}"] = getattr(struct, field).offset
            wanted[f"sizeof {name}.{field}"] = getattr(struct, field).size
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stdio.h>\n#include <fusebox_tools.h>\n#include <fusebox_ops.h>\n#include <fusebox_batch.h>\n"
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run(["cc", "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, stdout=subprocess.PIPE, text=True).stdout
    compiler = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in printed.splitlines()}
    assert compiler == wanted


def test_no_field_is_missing() -> None:
    """The compiler sees a field that a struct lacks only if it changes the size."""
    text = header_text()
    for struct in STRUCTS:
        found = re.search(r"typedef struct %s \{(.*?)\} %s;" % ((struct.__name__,) * 2), text, re.DOTALL)
        assert found, struct.__name__
        fields = []
        for declaration in found.group(1).split(";"):
            declaration = re.sub(r"\(\*(\w+)\)\(.*\)", r"\1", declaration, flags=re.DOTALL)  # a function pointer
            words = re.findall(r"[a-z_0-9]+(?=\s*(?:\[|,|$))", re.sub(r"\[\w*\]", "", declaration.strip()))
            fields += words
        assert fields == [name for name, *_ in struct._fields_], struct.__name__


ENUMS = {"fb_status", "fb_dtype", "fb_cache_kind", "fb_ops_norm", "fb_ops_activation", "fb_ops_strategy"}


def kind_of(parameter: str) -> str:
    """What a parameter or result is in C, as far as ctypes must know."""
    if "*" in parameter or "[" in parameter or re.search(r"\bfb_\w+_fn\b", parameter):
        return "pointer"
    words = set(re.findall(r"\w+", parameter))
    for name in ("bool", "size_t", "int32_t", "int64_t", "uint64_t", "float", "double", "void", "int"):
        if name in words:
            return name
    if "fb_ops_positions" in words:  # the only struct that is passed by value
        return "fb_ops_positions"
    assert words & ENUMS, parameter
    return "int"


def kind_of_ctypes(value: Any) -> str:
    names = {
        None: "void",
        ctypes.c_bool: "bool",
        ctypes.c_size_t: "size_t",
        ctypes.c_int32: "int32_t",
        ctypes.c_int64: "int64_t",
        ctypes.c_float: "float",
        ctypes.c_double: "double",
        _c_ops.fb_ops_positions: "fb_ops_positions",
    }
    return names.get(value, "pointer")


SAME = {"int": "int32_t", "size_t": "uint64_t"}  # types that ctypes does not tell apart


def test_functions() -> None:
    declared = dict(
        (name, (result, parameters))
        for result, name, parameters in re.findall(
            r"^FB_API\s+([\w\s*]+?)\s*\b(fb_\w+)\(([^;{]*)\);", header_text(), re.MULTILINE
        )
    )
    assert len(declared) > 60
    for name, (result, arguments) in FUNCTIONS.items():
        assert name in declared, name
        c_result, c_parameters = declared[name]
        parameters = [p for p in c_parameters.split(",") if p.strip() != "void"]
        in_c = [kind_of(c_result + ("*" if "*" in c_result else "")), *map(kind_of, parameters)]
        in_python = [kind_of_ctypes(result), *map(kind_of_ctypes, arguments)]
        assert [SAME.get(k, k) for k in in_c] == [SAME.get(k, k) for k in in_python], name


def test_a_wrong_offset_would_be_seen() -> None:
    """The comparison above compares something."""

    class shifted(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("has_tokenizer", ctypes.c_bool), ("architecture", ctypes.c_char_p)]

    assert getattr(shifted, "architecture").offset != getattr(_c.fb_model_info, "architecture").offset


if __name__ == "__main__":
    pytest.main([__file__])
