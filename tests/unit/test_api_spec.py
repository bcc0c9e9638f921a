"""Any document that is sent as a spec becomes a job spec or an InvalidSpec error."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from services.api.submit import check_code, check_devices, check_gang, check_image, read_spec
from services.api.uploads import Code, Uploads
from services.core.domain.errors import InvalidSpec
from services.core.domain.spec import JobSpec, dump_spec, parse_spec
from services.core.frameworks.images import LibraryImages

WORDS = some.sampled_from(
    [
        "",
        "x",
        "jax",
        "jax:0.10",
        "1h",
        "16GB",
        "-1",
        "9" * 400 + "h",
        "9" * 400 + "GB",
        "worker",
        "..",
        "/abs",
        "\ud800",
        "\x00",
        "none",
        "local",
        "http",
        "exit:3",
        "infrastructure",
        "cpu",
        "v100x2",
        "true",
        "../x",
        "http://x/y",
        "ñ" * 70,
    ]
)
SCALARS = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.sampled_from([0, 1, 2, 2**63, 10**30, -1])
    | some.floats()
    | WORDS
    | some.text(max_size=20)
)
FIELDS = some.sampled_from(
    [
        *JobSpec.model_fields,
        "learners",
        "count",
        "min",
        "cpus",
        "gpus",
        "memory",
        "version",
        "id",
        "type",
        "path",
        "url",
        "store",
        "mount",
        "max",
        "backoff",
        "on",
        "keep",
        "size",
        "decides",
        "on_failure",
        "worker",
        "ps",
        "A",
        "PATH",
        "nmae",
    ]
)
VALUES = some.recursive(
    SCALARS,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(FIELDS | WORDS, inner, max_size=4),
    max_leaves=12,
)
SPECS = some.dictionaries(FIELDS, VALUES, max_size=8).map(lambda fields: {"name": "x", "command": "true", **fields})


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(SPECS | VALUES)
def test_any_document_is_a_valid_spec_or_an_invalid_spec_error(document: Any) -> None:
    try:
        spec = read_spec(json.dumps(document).encode(), "json")
    except InvalidSpec as refused:
        refused.message.encode()
        for error in refused.errors:
            (error.pointer + error.message + error.hint).encode()
    else:
        stored = dump_spec(spec)
        json.dumps(stored, allow_nan=False).encode()
        assert parse_spec(stored) == spec


@settings(max_examples=150, deadline=None)
@given(some.binary(max_size=200) | some.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_valid_spec_or_an_invalid_spec_error(text: bytes) -> None:
    try:
        read_spec(text, "yaml")
    except InvalidSpec as refused:
        refused.message.encode()


def test_gang_with_more_learners_or_bytes_than_the_platform_takes_is_refused_with_the_setting() -> None:
    spec = parse_spec({"name": "x", "command": "true", "learners": 11, "env": {"A": "b" * 95}})
    check_gang(spec, max_learners=11, max_bytes=11 * 100)
    with pytest.raises(InvalidSpec, match=r"at most 10 learners \(WEFT_MAX_LEARNERS\)") as refused:
        check_gang(spec, max_learners=10, max_bytes=2_000)
    assert [error.pointer for error in refused.value.errors] == ["/roles"]
    with pytest.raises(InvalidSpec, match=r"1100 bytes together, .* takes 1099 \(WEFT_MAX_GANG_BYTES\)"):
        check_gang(spec, max_learners=11, max_bytes=1_099)


def test_framework_without_an_image_on_this_cluster_is_refused_with_those_that_have_one() -> None:
    images = LibraryImages(named={"numpy-2": "registry.example/numpy:2"})
    spec = parse_spec({"name": "x", "command": "true", "framework": "jax:0.10"})
    with pytest.raises(InvalidSpec, match=r"^framework: this cluster has no image of jax 0\.10") as refused:
        check_image(spec, images)
    (error,) = refused.value.errors
    assert error.pointer == "/framework"
    assert error.hint.startswith("it has: numpy 2.")
    assert "`image:`" in error.hint
    with pytest.raises(InvalidSpec, match=r"jax 0\.10\S*; name one with `image:`"):
        check_image(spec, LibraryImages())


def test_device_that_the_operator_does_not_list_is_refused_with_those_that_are() -> None:
    fields = {"resources": {"devices": {"rdma/hcb": 1}}, "roles": {"w": {"count": 1, "devices": {"fpga/x": 1}}}}
    spec = parse_spec({"name": "x", "command": "true", **fields})
    with pytest.raises(InvalidSpec, match=r"this cluster gives learners no 'rdma/hcb'; there are: rdma/hca") as refused:
        check_devices(spec, ("rdma/hca",))
    assert [(error.pointer, error.hint) for error in refused.value.errors] == [
        ("/resources/devices/rdma~1hcb", "there are: rdma/hca"),
        ("/roles/w/devices/fpga~1x", "there are: rdma/hca"),
    ]
    with pytest.raises(InvalidSpec, match="there are none: leave it out"):
        check_devices(spec, ())
    check_devices(spec, ("rdma/hcb", "fpga/x"))
    check_devices(spec, None)


@pytest.mark.parametrize(
    ("fields", "images"),
    [
        ({"framework": "jax:0.10"}, None),  # learners are no pods
        ({"framework": "jax:0.10"}, LibraryImages(registry="registry.example")),
        ({"image": "mine:1"}, LibraryImages()),
        ({}, LibraryImages()),
    ],
)
def test_job_whose_learners_have_an_image_is_accepted(fields: dict[str, str], images: LibraryImages | None) -> None:
    check_image(parse_spec({"name": "x", "command": "true", **fields}), images)


@pytest.mark.parametrize(
    ("files", "refused"),
    [(("train.py", "requirements.txt"), True), (("train.py", "lib/requirements.txt", "requirements.txt.old"), False)],
)
async def test_code_with_requirements_is_refused_before_it_is_stored_where_learners_are_pods(
    tmp_path: Path, files: tuple[str, ...], *, refused: bool
) -> None:
    uploads = Uploads(tmp_path / "uploads", max_bytes=2**20, most=1, most_of_tenant=1)
    uploads.open()
    async with uploads.receive("acme") as upload:
        await upload.write(packed(files))
        code: Code = await upload.finish()
    uploads.close()
    check_code(code, "local")
    if not refused:
        check_code(code, "kubernetes")
        return
    with pytest.raises(InvalidSpec, match=r"^code: its requirements.txt is not installed .* `image:`") as error:
        check_code(code, "kubernetes")
    assert [field.pointer for field in error.value.errors] == ["/code"]


def packed(files: tuple[str, ...]) -> bytes:
    """A code archive with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in files:
            archive.writestr(name, "numpy\n")
    return buffer.getvalue()
