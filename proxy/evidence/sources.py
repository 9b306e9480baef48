"""How a chunk's source is named in one line. Only the standard library: `proxy.tagging` writes it for any tool."""

from __future__ import annotations


def source_line(title: str | None, uri: str | None, headings: str | None, pages: str | None) -> str | None:
    """A source in one line: `"Title" > Heading (uri), p. 3`, of what there is."""
    named = f'"{title}"' if title else ""
    if headings:
        named = f"{named} > {headings}" if named else headings
    if uri and uri != title:
        named = f"{named} ({uri})" if named else uri
    if pages:
        named = f"{named}, p. {pages}" if named else f"p. {pages}"
    return named or None
