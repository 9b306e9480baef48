"""Where records are kept: LanceDB behind a small interface. Importing this room does not import LanceDB."""

from proxy.store.health import Histogram, Stats
from proxy.store.held import HeldAnswers
from proxy.store.record import StoredRecord, StoreError, StoreSlow
from proxy.store.records import RecordStore
from proxy.store.shelves import Store, open_store

__all__ = [
    "HeldAnswers",
    "Histogram",
    "RecordStore",
    "Stats",
    "Store",
    "StoreError",
    "StoreSlow",
    "StoredRecord",
    "open_store",
]
