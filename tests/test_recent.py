"""Holds what a process remembers of recent requests to its bounds: in number, and in bytes where values are large."""

from proxy.gateway.recent import Recent, RecentBytes


def test_the_least_recently_used_leaves_first() -> None:
    recent: Recent[int, str] = Recent(2)
    recent.put(1, "one")
    recent.put(2, "two")
    assert recent.get(1) == "one"
    recent.put(3, "three")
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("one", None, "three")


def test_bytes_are_bounded_whatever_their_number() -> None:
    recent: RecentBytes[int, bytes] = RecentBytes(1_000, 1_000, len)
    for n in range(300):
        recent.put(n, bytes(n))
        assert recent.size <= 1_000
    assert recent.get(299) and recent.get(298) and recent.get(297) and not recent.get(295)
    recent.put(299, bytes(1))
    assert recent.size == 1 + 298 + 297 + len(recent.get(296) or b"")
    recent.drop(298)
    assert recent.size == 1 + 297 + len(recent.get(296) or b"")


def test_a_value_that_is_larger_than_all_of_it_is_not_held() -> None:
    recent: RecentBytes[int, bytes] = RecentBytes(1_000, 10, len)
    recent.put(1, bytes(11))
    assert recent.get(1) is None and recent.size == 0
