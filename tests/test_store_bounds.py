"""Holds the bounded parts of the store to their bounds: the cache, the queue of what is not yet written, the place."""

from pathlib import Path

from proxy.store.cache import RecordCache
from proxy.store.place import Place
from proxy.store.record import Entry, StoredRecord
from proxy.store.unwritten import Unwritten


def key(n: int) -> bytes:
    return n.to_bytes(32, "big")


def entry(n: int, payload: bytes = b"p") -> Entry:
    return Entry.of(StoredRecord(key(n), b"t" * 32, b"r" * 16, payload), created=n)


def test_the_cache_stays_within_its_bytes_and_the_least_recently_used_leave_first() -> None:
    cache = RecordCache(limit=50_000)
    for n in range(1_000):
        cache.hold(key(n), bytes(100), created=n, written=True)
        cache.get(key(0), since=0)
        assert cache.size <= 50_000
    assert cache.get(key(0), since=0) == {bytes(100): 0}
    assert cache.get(key(1), since=0) == {}
    assert cache.get(key(999), since=0) == {bytes(100): 999}


def test_a_key_too_large_for_the_cache_does_not_empty_it() -> None:
    cache = RecordCache(limit=10_000)
    cache.hold(key(1), b"small", created=1, written=True)
    for n in range(50):
        cache.hold(key(2), n.to_bytes(1, "big") * 500, created=2, written=True)
    assert cache.get(key(1), since=0) == {b"small": 1}
    assert cache.size <= 10_000


def test_an_emptied_cache_weighs_nothing() -> None:
    cache = RecordCache(limit=1_000_000)
    for n in range(100):
        cache.hold(key(n % 10), n.to_bytes(2, "big"), created=5, written=False)
    for n in range(10):
        assert cache.get(key(n), since=6) == {}
    assert (cache.size, len(cache)) == (0, 0)


def test_what_is_older_than_asked_for_is_not_given() -> None:
    cache = RecordCache(limit=1_000_000)
    cache.hold(key(1), b"old", created=10, written=True)
    cache.hold(key(1), b"new", created=20, written=True)
    assert cache.get(key(1), since=15) == {b"new": 20}


def test_the_queue_sheds_the_oldest_first_and_says_how_many() -> None:
    queue = Unwritten(limit=10_000)
    shed = sum(queue.accept(entry(n, bytes(300))) for n in range(100))
    assert queue.size <= 10_000
    assert shed + len(queue) == 100
    kept = [waiting.key for waiting in queue.take(100, 1 << 20)]
    assert kept == [key(n) for n in range(shed, 100)]
    assert queue.under(key(0)) == {}
    assert queue.under(key(99)) == {b"r" * 16 + bytes(300): 99}


def test_what_the_writer_has_in_hand_is_not_shed_until_it_is_put_back() -> None:
    queue = Unwritten(limit=4_500)
    for n in range(4):
        queue.accept(entry(n, bytes(300)))
    batch = queue.take(2, 1 << 20)
    assert queue.accept(entry(4, bytes(300))) == 1
    assert queue.under(key(0)) and queue.under(key(1)) and not queue.under(key(2))
    queue.put_back()
    assert queue.accept(entry(5, bytes(300))) == 1
    assert not queue.under(key(0))
    assert batch[1] == queue.take(1, 1 << 20)[0]


def test_a_record_that_is_larger_than_the_queue_sheds_only_itself() -> None:
    queue = Unwritten(limit=10_000)
    queue.accept(entry(1))
    assert queue.accept(entry(2, bytes(20_000))) == 1
    assert queue.under(key(1)) and not queue.under(key(2))


def test_a_batch_is_bounded_in_rows_and_bytes_but_never_empty() -> None:
    queue = Unwritten(limit=1 << 20)
    for n in range(10):
        queue.accept(entry(n, bytes(1_000)))
    assert len(queue.take(3, 1 << 20)) == 3
    assert len(queue.take(100, 2_500)) == 2
    assert len(queue.take(100, 10)) == 1


def test_everything_accepted_is_gone_in_the_end() -> None:
    queue = Unwritten(limit=3_000)
    for n in range(50):
        queue.accept(entry(n))
    while batch := queue.take(2, 1 << 20):
        queue.remove(batch)
    assert (queue.accepted, queue.gone, queue.size, len(queue)) == (50, 50, 0, 0)


def test_a_place_is_a_directory_an_address_or_nowhere() -> None:
    data = Path("/var/lib/evidence-proxy")
    assert Place.of(None, data).directory == data
    assert Place.of("/elsewhere", data).directory == Path("/elsewhere")
    assert Place.of("file:///elsewhere", data).directory == Path("/elsewhere")
    assert Place.of("s3://bucket/prefix", data).directory is None
    assert Place.of("memory://", data).in_memory


def test_a_message_never_names_the_credentials_of_an_address() -> None:
    place = Place.of("s3://user:hunter2@bucket/prefix?secret=hunter2", Path("x"))
    assert place.shown == "s3://bucket/prefix"
