"""Decoding: any cut of the input gives the same bytes, and the limit holds to the byte."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.gateway.encodings import Broken, Decoder, TooLarge, decode, named, zstd

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "br": brotli.compress,
}

bodies = st.one_of(
    st.binary(max_size=2000), st.builds(lambda unit, n: unit * n, st.binary(max_size=8), st.integers(0, 40_000))
)


@given(bodies, st.lists(st.sampled_from(sorted(PACK)), max_size=3), st.lists(st.integers(0, 300), max_size=20))
def test_however_the_bytes_are_cut_the_body_is_the_same(body: bytes, codings: list[str], cuts: list[int]) -> None:
    packed = body
    for coding in codings:
        packed = PACK[coding](packed)
    decoder = Decoder(codings, 1 << 20)
    out: list[bytes] = []
    rest = packed
    for cut in cuts:
        out += decoder.feed(rest[:cut])
        rest = rest[cut:]
    out += decoder.feed(rest)
    decoder.close()

    assert b"".join(out) == body
    assert decode(packed, codings, 1 << 20) == body


@given(st.binary(max_size=300), st.sampled_from(sorted(PACK)), st.booleans())
def test_rubbish_is_broken_and_nothing_worse(data: bytes, coding: str, after_a_good_start: bool) -> None:
    with contextlib.suppress(Broken, TooLarge):
        decode((PACK[coding](b"x" * 50)[:20] if after_a_good_start else b"") + data, [coding], 1000)


@pytest.mark.parametrize("coding", sorted(PACK))
def test_the_limit_is_exact(coding: str) -> None:
    packed = PACK[coding](b"\0" * 200_000)

    assert len(decode(packed, [coding], 200_000)) == 200_000
    with pytest.raises(TooLarge):
        decode(packed, [coding], 199_999)


@pytest.mark.parametrize("coding", sorted(PACK))
def test_a_body_that_ends_early_is_broken(coding: str) -> None:
    packed = PACK[coding](bytes(range(256)) * 100)

    for end in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(Broken):
            decode(packed[:end], [coding], 1 << 20)


def test_several_members_and_frames_are_one_body() -> None:
    assert decode(gzip.compress(b"a") + gzip.compress(b"b") + b"\0\0", ["gzip"], 10) == b"ab"
    assert decode(zstd.compress(b"a") + zstd.compress(b"b"), ["zstd"], 10) == b"ab"


def test_a_raw_deflate_stream_is_read_like_a_wrapped_one() -> None:
    packer = zlib.compressobj(wbits=-15)
    raw = packer.compress(b"body" * 1000) + packer.flush()

    assert decode(raw, ["deflate"], 10_000) == b"body" * 1000
    decoder = Decoder(["deflate"], 10_000)
    assert b"".join(piece for at in range(len(raw)) for piece in decoder.feed(raw[at : at + 1])) == b"body" * 1000
    decoder.close()


def test_an_unknown_coding_is_broken_and_identity_is_none() -> None:
    with pytest.raises(Broken):
        Decoder(["compress"], 10)
    assert named(["Identity", " GZIP , br", ""]) == ("gzip", "br")
