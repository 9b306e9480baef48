"""The keys that proxies in tests sign tags with."""

from proxy.tagging import Keys

KEYS = Keys(["a key that only these tests have"])
