"""TCP ports on this machine: whether one is free, who holds it, and one that nobody holds."""

import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class PortRequest:
    """A port that a part of the run needs, and the option that chooses another. Port 0 stands for any free one."""

    what: str
    option: str
    host: str
    port: int


def choose_port(request: PortRequest) -> int:
    """Return the port, or a free one for port 0. Raises OSError when it cannot be bound."""
    family = socket.AF_INET6 if ":" in request.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a connection that lingers after the last run does not count as a holder.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((request.host, request.port))
        return int(probe.getsockname()[1])


def holder(port: int) -> str | None:
    """Return the program that listens on a port, with its process id; None when that can't be found out."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            return _describe(connection.pid)
    return None


def _describe(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"process {pid}"
    return f"process {pid} ({command[:80]})"
