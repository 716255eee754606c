"""Free ports on this machine."""

import socket


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different TCP ports that nobody listens on at `host`."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind((host, 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
