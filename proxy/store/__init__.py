"""Where records are kept: LanceDB behind a small interface. Importing this room does not import LanceDB."""

from proxy.store.record import StoredRecord, StoreError, StoreSlow
from proxy.store.records import RecordStore, open_contents, open_store

__all__ = ["RecordStore", "StoreError", "StoreSlow", "StoredRecord", "open_contents", "open_store"]
