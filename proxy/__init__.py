"""Evidence Proxy: keeps long retrieval conversations small without losing what their answers rest on."""

__version__ = "0.1.0"
