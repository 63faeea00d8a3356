"""Texts that fit a JSON schema, checked by another implementation of it."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

import fusebox

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "height": {"type": "number", "exclusiveMinimum": 0, "maximum": 3},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n", 3, None, {"x": [1.5]}]}, "minItems": 1, "maxItems": 4},
        "id": {"type": "string", "pattern": r"^[A-Z]{2}-\d{3}$"},
        "day": {"type": "string", "format": "date"},
        "note": {"type": ["string", "null"], "maxLength": 9},
        "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False},
    },
    "required": ["name", "tags", "id", "day"],
    "additionalProperties": False,
}
SHAPES = {
    "$defs": {
        "shape": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer", "maximum": 9}},
                    "required": ["kind", "radius"],
                },
                {
                    "type": "object",
                    "properties": {
                        "kind": {"const": "group"},
                        "parts": {"type": "array", "items": {"$ref": "#/$defs/shape"}, "maxItems": 2},
                    },
                    "required": ["kind", "parts"],
                },
            ]
        }
    },
    "$ref": "#/$defs/shape",
}
OPEN = {
    "type": "object",
    "properties": {"key": {"type": "integer"}, "keys": {"type": "boolean"}},
    "required": ["keys"],
    "additionalProperties": {"type": "string", "maxLength": 3},
}
MERGED = {
    "allOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"b": {"type": "string", "maxLength": 4}, "a": {"minimum": 5}}},
    ],
    "properties": {"c": {"oneOf": [{"type": "null"}, {"type": "boolean"}]}},
}


@pytest.mark.parametrize("schema", [PERSON, SHAPES, OPEN, MERGED], ids=["person", "shapes", "open", "merged"])
def test_random_texts_fit(model: fusebox.Model, schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    complete = 0
    for seed in range(25):
        # Hot, so that the model's wishes hardly matter; what closes strings, arrays and objects is likelier.
        text = model.generate(
            "x", schema=schema, temperature=random.Random(seed).choice([1, 3, 30]), top_k=0, min_p=0, top_p=1,
            max_tokens=400, seed=seed, presence_penalty=0,
        )
        if text.stop == "end":
            validator.validate(json.loads(text))
            complete += 1
    assert complete >= 15, complete


def test_greedy_texts_fit(model: fusebox.Model) -> None:
    for schema in (PERSON, json.dumps(PERSON)):
        text = model.generate("Once upon a time", schema=schema, temperature=0, max_tokens=400)
        assert text.stop == "end"
        jsonschema.validate(json.loads(text), PERSON)
    assert text == model.generate("Once upon a time", schema=PERSON, temperature=0, max_tokens=400, fuse="none")


def test_refusals_name_what_is_wrong(model: fusebox.Model) -> None:
    cases: list[tuple[Any, str]] = [
        ({"not": {}}, "schema: not: not supported"),
        ("{", "schema: not JSON"),
        ({"type": "object", "required": ["a"], "properties": {}}, 'schema: required: "a"'),
        ({"$ref": "#"}, "schema: more than 16"),
    ]
    for schema, words in cases:
        with pytest.raises(fusebox.UsageError, match=words):
            model.generate("x", schema=schema, max_tokens=1)
