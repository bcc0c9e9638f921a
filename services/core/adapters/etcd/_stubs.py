"""The messages and stubs of etcd3 0.12.0, made usable under protobuf 5 to 7.

Importing ``etcd3`` fails with any protobuf since 4: its generated modules build descriptors in a way that was removed.
What they carry is intact, though: the serialized descriptors of etcd's own protos, and stubs of plain Python. So both
are read from the package's files without importing it; the messages are built in a descriptor pool of our own, where
they cannot meet another package's ``rpc.proto`` or ``kv.proto``.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROGRESS_REQUEST: Final = b"\x1a\x00"
"""A serialized WatchRequest whose ``progress_request`` (field 3, etcd 3.4) is set: etcd3's proto is older than that
field, but keeps and sends on what it does not know."""


def _package() -> Path:
    spec = find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package etcd3 is not installed; its version 0.12.0 is what Weft's locks name")
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _descriptor(module: Path) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor in a generated module: the one literal given as ``serialized_pb=_b('...')``."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            literal: str = ast.literal_eval(node.value.args[0])
            return descriptor_pb2.FileDescriptorProto.FromString(literal.encode("latin-1"))
    raise ImportError(f"{module} holds no descriptor; Weft works with etcd3 0.12.0 only")


def _load() -> tuple[SimpleNamespace, SimpleNamespace]:
    package = _package()
    files = [_descriptor(package / f"{name}_pb2.py") for name in ("kv", "auth", "rpc")]
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    messages = SimpleNamespace(
        **{
            message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
            for file in files
            for message in file.message_type
        }
    )
    tree = ast.parse((package / "rpc_pb2_grpc.py").read_text())
    # Its imports would import the whole package, which fails; what they would bind is given instead.
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    names: dict[str, Any] = {"grpc": grpc, "rpc__pb2": messages}
    exec(compile(tree, "etcd3/etcdrpc/rpc_pb2_grpc.py", "exec"), names)  # noqa: S102 - an installed module's own code
    stubs = SimpleNamespace(**{name: value for name, value in names.items() if name.endswith("Stub")})
    return messages, stubs


_messages, _stubs = _load()
messages: Final[Any] = _messages
"""``messages.PutRequest`` and all others of rpc.proto, kv.proto and auth.proto."""
stubs: Final[Any] = _stubs
"""``stubs.KVStub``, ``WatchStub``, ``LeaseStub``, ``MaintenanceStub``, ``AuthStub``, each made of a channel."""
