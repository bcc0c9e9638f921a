"""Every field of the API has a description: in the OpenAPI document, in the protos, on the reference page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from services.api.rest.app import create_routes
from services.api.rest.openapi import document

ROOT = Path(__file__).parents[2]
FIELDS_OF_MESSAGE, NESTED, MESSAGES, SERVICES, METHODS = 2, 3, 4, 6, 2
"""Field numbers in descriptor.proto, of which the paths of source comments consist."""


def undescribed(node: Any, place: str = "") -> Iterator[str]:
    """Properties, parameters and named schemas below ``node`` that have no description."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from undescribed(item, f"{place}/{number}")
    if not isinstance(node, dict):
        return
    described = [f"properties/{name}" for name in node.get("properties", ())]
    if place == "/components":
        described += [f"schemas/{name}" for name in node["schemas"]]
    described += [f"parameters/{number}" for number, _ in enumerate(node.get("parameters", ()))]
    for path in described:
        collection, _, key = path.partition("/")
        child = node[collection][int(key) if collection == "parameters" else key]
        if not child.get("description", "").strip():
            yield f"{place}/{path}"
    for key, value in node.items():
        yield from undescribed(value, f"{place}/{key}")


def test_every_field_and_parameter_of_the_openapi_document_has_a_description() -> None:
    openapi = document(create_routes())
    assert len(openapi["components"]["schemas"]) > 30
    assert [*undescribed(openapi)] == []


def test_a_field_without_a_description_is_found() -> None:
    openapi = document(create_routes())
    del openapi["components"]["schemas"]["Job"]["properties"]["status"]["description"]
    openapi["paths"]["/v1/jobs"]["get"]["parameters"][0]["description"] = " "
    assert [*undescribed(openapi)] == ["/paths//v1/jobs/get/parameters/0", "/components/schemas/Job/properties/status"]


def descriptors(protos: Path, out: Path) -> FileDescriptorSet:
    """The protos below the folder, with their comments."""
    sources = sorted(str(path) for path in protos.rglob("*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    arguments = [f"-I{protos}", f"-I{include}", "--include_source_info", f"--descriptor_set_out={out}", *sources]
    assert protoc.main(["protoc", *arguments]) == 0
    return FileDescriptorSet.FromString(out.read_bytes())


def fields_of(message: DescriptorProto, path: tuple[int, ...], name: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path and name of every field of the message and of the messages inside it."""
    for number, field in enumerate(message.field):
        yield (*path, FIELDS_OF_MESSAGE, number), f"{name}.{field.name}"
    for number, inner in enumerate(message.nested_type):
        if not inner.options.map_entry:
            yield from fields_of(inner, (*path, NESTED, number), f"{name}.{inner.name}")


def uncommented(files: FileDescriptorSet) -> list[str]:
    """Fields and methods without a comment."""
    missing: list[str] = []
    for file in files.file:
        comments = {
            tuple(location.path): location.leading_comments + location.trailing_comments
            for location in file.source_code_info.location
        }
        named = [
            entry
            for number, message in enumerate(file.message_type)
            for entry in fields_of(message, (MESSAGES, number), message.name)
        ] + [
            ((SERVICES, number, METHODS, place), f"{service.name}.{method.name}")
            for number, service in enumerate(file.service)
            for place, method in enumerate(service.method)
        ]
        missing += [name for path, name in named if not comments.get(path, "").strip()]
    return missing


def test_every_field_and_method_of_the_protos_has_a_comment(tmp_path: Path) -> None:
    files = descriptors(ROOT / "proto", tmp_path / "protos")
    assert len(files.file) >= 6
    assert uncommented(files) == []


def test_a_field_and_a_method_without_a_comment_are_found(tmp_path: Path) -> None:
    (tmp_path / "x.proto").write_text(
        'syntax = "proto3";\nservice S { rpc Call(M) returns (M); }\n'
        "message M {\n  string a = 1;  // Described.\n  string b = 2;\n}\n"
    )
    assert uncommented(descriptors(tmp_path, tmp_path / "out")) == ["M.b", "S.Call"]


def test_the_api_reference_is_that_of_the_openapi_document() -> None:
    check = subprocess.run([sys.executable, ROOT / "scripts" / "api_reference.py", "--check"], check=False)
    assert check.returncode == 0, "run `python scripts/api_reference.py`"
