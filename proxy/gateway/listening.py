"""Where the proxy listens: the sockets of one address, for one process or for several that share it.

Each worker has a socket of its own at the same port, so that the kernel spreads the connections; they are all made
before the workers are, and live on in the parent, so that a worker that ends takes no waiting connection with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from proxy.settings import ServerSettings

BACKLOG = 1024  # a client that opens many connections at once overflows the default of 128
_UNIX_MODE = 0o660  # a balancer in the same group may connect, others not


def listeners(server: ServerSettings, workers: int = 1) -> list[list[socket.socket]]:
    """For each worker the sockets to accept from, which listen already. Raises OSError."""
    if server.unix_socket is not None:
        shared = _unix(Path(server.unix_socket).expanduser())
        return [[shared] for _ in range(workers)]
    found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    port = server.port
    if workers > 1 and port:
        for family, address in places:
            # Sharing a port is mutual: unless we ask first, we would share that of another proxy, too.
            _tcp(family, address, shared=False).close()
    opened: list[list[socket.socket]] = []
    try:
        for _ in range(workers):
            opened.append([])
            for family, address in places:
                made = _tcp(family, (address[0], port, *address[2:]), shared=workers > 1)
                opened[-1].append(made)
                port = made.getsockname()[1]  # 0 takes a free one, and the others must take the same
        return opened
    except BaseException:
        for one in (one for own in opened for one in own):
            one.close()
        raise


def address_of(listener: socket.socket) -> str:
    """The address of a socket, as a person writes it down."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def forget(server: ServerSettings) -> None:
    """Remove the file of a unix socket, once nobody listens there any more."""
    if server.unix_socket is not None:
        with contextlib.suppress(OSError):
            Path(server.unix_socket).expanduser().unlink()


def _tcp(family: socket.AddressFamily, address: tuple[object, ...], shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _unix(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with contextlib.suppress(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            path.unlink()  # what a process that was killed left behind
        made.bind(str(path))
        path.chmod(_UNIX_MODE)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
