"""Holds what a process remembers of recent requests to its bounds: in number, and in bytes where values are large."""

from proxy.gateway.recent import Recent, RecentBytes


def test_the_least_recently_used_leaves_first() -> None:
    recent: Recent[int, str] = Recent(2)
    recent.put(1, "one")
    recent.put(2, "two")
    assert recent.get(1) == "one"
    recent.put(3, "three")
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("one", None, "three")


def heavies(most_bytes: int) -> RecentBytes[int, tuple[str, bytes | None]]:
    """Values that share heavy things, which weigh as many bytes as they have."""
    return RecentBytes(1_000, most_bytes, lambda value: value[1], lambda _, heavy: len(heavy))


def test_what_many_values_share_counts_once_and_until_the_last_of_them_is_gone() -> None:
    recent = heavies(100)
    shared = bytes(60)
    for n in range(10):
        recent.put(n, ("shares", shared))
    assert recent.size == 60 and all(recent.get(n) for n in range(10))
    for n in range(9):
        recent.drop(n)
    assert recent.size == 60
    recent.put(9, ("has another", None))
    assert recent.size == 0


def test_bytes_are_bounded_whatever_their_number() -> None:
    recent = heavies(1_000)
    for n in range(300):
        recent.put(n, ("alone", bytes(n)))
        assert recent.size <= 1_000
    assert recent.get(299) and recent.get(298) and recent.get(297) and not recent.get(295)
    recent.put(299, ("lighter", bytes(1)))
    assert recent.size == 1 + 298 + 297 + len((recent.get(296) or ("", b""))[1] or b"")


def test_a_value_that_is_larger_than_all_of_it_is_not_held() -> None:
    recent = heavies(10)
    recent.put(1, ("large", bytes(11)))
    assert recent.get(1) is None and recent.size == 0
