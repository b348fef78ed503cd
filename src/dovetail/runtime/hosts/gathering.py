"""How supervisors find each other: the first listens, the others come, and all learn where the workers meet."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from dovetail.errors import DeviceError, OptionError, PeerError
from dovetail.runtime.hosts.membership import Membership, disagreement, is_hello
from dovetail.runtime.hosts.messages import Connection

_AGAIN = 0.1
"""Seconds between two tries to reach the coordinator."""


def listener(mine: Membership) -> socket.socket:
    """The socket at which the first supervisor awaits the others."""
    host, port = mine.coordinator
    try:
        return socket.create_server((host, port), backlog=mine.hosts)
    except OSError as error:
        raise OptionError(
            f"--coordinator {host}:{port} cannot be listened at: {error}", hint="name an address of this machine"
        ) from error


def gathered(mine: Membership, server: socket.socket) -> dict[int, Connection]:
    """All peers of the first supervisor. One that does not fit is an error for everyone; a stranger is sent away."""
    found: dict[int, Connection] = {}
    waiting: list[Connection] = []
    ends = time.monotonic() + mine.joining
    with selectors.DefaultSelector() as ready:
        ready.register(server, selectors.EVENT_READ)
        while len(found) < mine.hosts - 1:
            if time.monotonic() > ends:
                missing = sorted(set(range(1, mine.hosts)) - found.keys())
                _refuse([*found.values(), *waiting], f"rank {missing[0]} did not come")
                raise PeerError(
                    f"rank {', '.join(map(str, missing))} of {mine.hosts} did not come within {mine.joining:g} s",
                    rank=missing[0],
                    hint=f"start it: --rank {missing[0]} --coordinator {mine.coordinator[0]}:{mine.coordinator[1]}",
                )
            for key, _ in ready.select(_AGAIN):
                if key.fileobj is server:
                    one = Connection(server.accept()[0])
                    waiting.append(one)
                    ready.register(one.lines, selectors.EVENT_READ, one)
                    continue
                one = key.data
                hellos = one.lines.read()
                if not one.lines.is_open or (hellos and not is_hello(hellos[0])):
                    # A stranger, or a peer that went away and may come again.
                    ready.unregister(one.lines)
                    one.close()
                    waiting = [w for w in waiting if w is not one]
                    found = {rank: peer for rank, peer in found.items() if peer is not one}
                elif hellos:
                    why = disagreement(mine, hellos[0], set(found))
                    if why:
                        _refuse([*found.values(), *waiting], why)
                        raise PeerError(why, rank=hellos[0]["rank"], hint="start all with one command")
                    waiting.remove(one)
                    found[hellos[0]["rank"]] = one
    for one in waiting:
        one.close()
    return found


def _refuse(connections: list[Connection], why: str) -> None:
    for one in connections:
        one.send({"refused": why})
        one.close()


def joined(mine: Membership) -> tuple[Connection, dict[str, Any]]:
    """The connection of a further supervisor to the first, and what that says once all are there."""
    host, port = mine.coordinator
    ends = time.monotonic() + mine.joining
    why = "it did not answer"
    while time.monotonic() < ends:
        try:
            connection = Connection(socket.create_connection((host, port), timeout=mine.timeout))
        except OSError as error:
            why = str(error)
            time.sleep(_AGAIN)
            continue
        connection.send(mine.hello)
        try:
            start = _start(connection, ends)
        except PeerError:
            connection.close()
            raise
        if start is not None:
            return connection, start
        connection.close()
        time.sleep(_AGAIN)
    raise PeerError(
        f"rank {mine.rank} on {mine.host}: the coordinator {host}:{port} did not start the run within "
        f"{mine.joining:g} s: {why}",
        rank=0,
        hint="start rank 0 there, and check the address",
    )


def _start(connection: Connection, ends: float) -> dict[str, Any] | None:
    with selectors.DefaultSelector() as ready:
        ready.register(connection.lines, selectors.EVENT_READ)
        while connection.lines.is_open and time.monotonic() < ends:
            ready.select(_AGAIN)
            for message in connection.lines.read():
                if "refused" in message:
                    raise PeerError(str(message["refused"]), rank=0, hint="start all with one command")
                if "start" in message:
                    return message["start"]
    return None


def free_port(host: str) -> int:
    """A port that the workers can meet at."""
    try:
        with socket.create_server((host, 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise DeviceError(f"no port is free at {host}: {error}", hint="check --coordinator") from error


__all__ = ["free_port", "gathered", "joined", "listener"]
