"""Bytes in and out: HTTP, streaming, headers, cancelling. The only room that talks to clients and to the provider."""
