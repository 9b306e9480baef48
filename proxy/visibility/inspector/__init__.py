"""The inspector: what the proxy did with each request, to look at while it does. In memory only, and bounded."""
