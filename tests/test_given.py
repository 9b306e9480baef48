"""Holds what this process gave its requests: found again while it is remembered, and no object for each of them."""

from __future__ import annotations

import gc
import hashlib
import random
import sys

from proxy.gateway.given import Given, Records
from proxy.gateway.packed import Packed
from proxy.ledger.boundary import Boundary
from proxy.ledger.records import VERSION, Record, encode


def key(n: int) -> bytes:
    return hashlib.sha256(n.to_bytes(8, "big")).digest()


def record(n: int) -> Record:
    return Record(VERSION, n, key(n)[:16], b"shown", "grounded", (), (0, n), (), ())


def test_packed_values_are_those_of_a_dictionary_as_long_as_all_fit() -> None:
    rng, packed, plain = random.Random(1), Packed(1_000), dict[bytes, bytes]()
    for _ in range(5_000):
        name = key(rng.randrange(400))
        what = rng.random()
        if what < 0.4:
            value = rng.randbytes(rng.randrange(90))
            packed.put(name, value)
            plain[name] = value
        elif what < 0.5:
            packed.drop(name)
            plain.pop(name, None)
        assert packed.get(name) == plain.get(name) and (name in packed) == (name in plain)
        if what > 0.999:
            packed.clear()
            plain.clear()


def test_the_ones_used_last_stay_and_the_number_is_bounded() -> None:
    packed = Packed(100)
    for n in range(1_000):
        packed.put(key(n), b"%d" % n)
        assert packed.get(key(0)) == b"0"
        assert all(packed.get(key(m)) == b"%d" % m for m in range(max(0, n - 40), n))
    assert sum(key(n) in packed for n in range(1_000)) <= 200


def test_bytes_are_bounded_and_what_is_too_large_for_them_is_not_kept() -> None:
    packed = Packed(1_000_000, 10_000)
    packed.put(key(0), bytes(5_000))
    assert packed.get(key(0)) is None
    for n in range(1, 1_000):
        packed.put(key(n), bytes(n))
        assert packed.size <= 10_000
        assert packed.get(key(n)) == bytes(n)


def test_a_boundary_is_found_again_as_it_was() -> None:
    given = Given(100, Records(1_000_000))
    boundaries = [Boundary(), Boundary(3, record(3)), Boundary(7, record(7), "missing-content"), Boundary(9, None, "x")]
    for n, boundary in enumerate(boundaries):
        given.put(key(n), boundary)
    assert [given.get(key(n)) for n in range(5)] == [*boundaries, None]
    assert [given.reply(key(n)) for n in range(5)] == [-1, 3, 7, 9, None]
    assert key(2) in given and key(4) not in given
    given.clear()
    assert given.get(key(1)) is None


def test_requests_of_a_question_share_its_record_and_it_outlives_its_value() -> None:
    records = Records(1_000_000)
    given = Given(10_000, records)
    first = records.of(encode(record(1)))
    assert first is not None
    given.put(key(1), Boundary(0, first))
    given.put(key(2), Boundary(0, first))
    found = [given.get(key(n)) for n in (1, 2)]
    assert all(one is not None and one.record is first for one in found)
    assert records.of(encode(record(1))) is first
    for n in range(1_000, 2_000):  # more than are held as values
        given.put(key(n), Boundary(0, record(n)))
    again = given.get(key(1))
    assert again is not None and again.record == first and again.record is not first


def test_damaged_bytes_are_no_record() -> None:
    assert Records(1_000).of(b"no record") is None


def test_what_is_remembered_of_a_request_is_no_object() -> None:
    given = Given(10_000, Records(0))
    gc.collect()
    before = sys.getallocatedblocks()
    for n in range(2_000):
        given.put(key(n), Boundary(n, record(n)))
    assert sys.getallocatedblocks() - before < 200
    assert given.get(key(0)) == Boundary(0, record(0))
