"""Uploads in parts that go on after an interruption: the object is what was read last, in each of its parts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Mapping
from copy import deepcopy

import pytest

from services.core.adapters.s3.answers import Answer, UploadGone
from services.core.adapters.s3.bucket import Bucket
from services.core.adapters.s3.objects import S3ObjectStore
from services.core.adapters.s3.signing import Signer
from services.core.adapters.s3.transfer import PART_BYTES, Transfer, Upload
from services.core.adapters.s3.wire import Wire
from services.core.ports.object_urls import ObjectRequest

SIZE = 2 * PART_BYTES + 5
CONTENT = b"".join(bytes([number]) * PART_BYTES for number in range(3))[:SIZE]


class Kept:
    """``Progress`` in memory."""

    def __init__(self) -> None:
        self.upload: Upload | None = None

    def load(self) -> Upload | None:
        return deepcopy(self.upload)

    def save(self, upload: Upload) -> None:
        self.upload = deepcopy(upload)

    def forget(self) -> None:
        self.upload = None


@contextlib.contextmanager
def transferring(place: Bucket, wire: Wire | None = None) -> Generator[Transfer]:
    """A transfer that signs its own URLs."""
    signer = Signer(place)

    async def sign(request: ObjectRequest) -> str:
        return signer.url(request)

    transfer = Transfer(sign, wire=wire)
    with contextlib.closing(transfer):
        yield transfer


async def chunks(content: bytes, *, fails: bool = False) -> AsyncIterator[bytes]:
    """``fails``: it cannot be read to its end."""
    yield content
    if fails:
        raise InterruptedError


async def read(place: Bucket) -> bytes:
    return b"".join([chunk async for chunk in S3ObjectStore(place).get("t/k")])


async def interrupted(transfer: Transfer, content: bytes, kept: Kept) -> Upload:
    """The state of an upload of which two parts were sent."""
    with pytest.raises(InterruptedError):
        await transfer.put("t/k", chunks(content[:-1], fails=True), size=SIZE, progress=kept)
    assert kept.upload is not None
    assert len(kept.upload.etags) == 2
    return kept.upload


@pytest.mark.parametrize("changed_at", [0, PART_BYTES, 2 * PART_BYTES - 1])
async def test_resumed_upload_of_a_file_that_changed_meanwhile_has_no_part_of_its_former_content(
    s3_bucket: Bucket, changed_at: int
) -> None:
    kept = Kept()
    former = CONTENT[:changed_at] + b"x" + CONTENT[changed_at + 1 :]
    with transferring(s3_bucket) as transfer:
        await interrupted(transfer, former, kept)
        await transfer.put("t/k", chunks(CONTENT), size=SIZE, progress=kept)
    assert await read(s3_bucket) == CONTENT
    assert kept.upload is None


async def test_upload_of_a_helper_that_kept_no_digests_of_its_parts_is_sent_again(s3_bucket: Bucket) -> None:
    kept = Kept()
    with transferring(s3_bucket) as transfer:
        upload = await interrupted(transfer, b"x" * SIZE, kept)
        upload.digests.clear()
        await transfer.put("t/k", chunks(CONTENT), size=SIZE, progress=kept)
    assert await read(s3_bucket) == CONTENT


class WithoutUploads(Wire):
    """To a server whose uploads are swept before they are completed."""

    async def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        within_s: float | None = None,
    ) -> Answer:
        if method == "POST" and "uploadId=" in url:
            return Answer(404, {}, b"<Error><Code>NoSuchUpload</Code></Error>")
        return await super().send(method, url, body, headers, within_s=within_s)


async def test_upload_that_was_swept_is_not_taken_for_an_earlier_object_of_its_size(s3_bucket: Bucket) -> None:
    kept = Kept()
    await S3ObjectStore(s3_bucket).put("t/k", chunks(b"x" * SIZE))
    with transferring(s3_bucket, WithoutUploads()) as transfer, pytest.raises(UploadGone):
        await transfer.put("t/k", chunks(CONTENT), size=SIZE, progress=kept)
    assert kept.upload is None, "the next try begins anew"
    with transferring(s3_bucket) as transfer:
        await transfer.put("t/k", chunks(CONTENT), size=SIZE, progress=kept)
    assert await read(s3_bucket) == CONTENT
