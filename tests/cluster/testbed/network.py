"""The addresses of a test node, and the link that joins its network to the machine's."""

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.commands import CommandError, run

SPACE = ipaddress.IPv4Network("198.18.0.0/15")
"""Set aside for tests of network devices (RFC 2544): no other machine has an address in it."""
SLOT_PREFIX = 20
SLOTS = 1 << (SLOT_PREFIX - SPACE.prefixlen)


@dataclass(frozen=True)
class NodeNetwork:
    """One cluster's share of the address space: pods, Services, and a link between the machine and the node."""

    slot: int

    @property
    def network(self) -> ipaddress.IPv4Network:
        """All addresses of this cluster."""
        return list(SPACE.subnets(new_prefix=SLOT_PREFIX))[self.slot]

    @property
    def pods(self) -> str:
        """The pods' addresses, in CIDR notation."""
        return f"{self.network[0]}/22"

    @property
    def services(self) -> str:
        """The Services' addresses, in CIDR notation."""
        return f"{self.network[8 * 256]}/22"

    @property
    def machine(self) -> str:
        """The machine's end of the link, where the API server listens."""
        return str(self.network[15 * 256 + 1])

    @property
    def node(self) -> str:
        """The node's end of the link, where kubelet and the DNS server listen."""
        return str(self.network[15 * 256 + 2])

    @property
    def link(self) -> str:
        """The name of the machine's end of the link."""
        return f"paceline{self.slot}"


def free_slots(taken: Iterable[ipaddress.IPv4Network]) -> list[NodeNetwork]:
    """Return the shares that overlap none of the networks that are taken."""
    networks = list(taken)
    candidates = (NodeNetwork(slot) for slot in range(SLOTS))
    return [each for each in candidates if not any(each.network.overlaps(network) for network in networks)]


def connect(node_pid: int) -> NodeNetwork:
    """Join the network namespace of the process `node_pid` to the machine's, by a link of its own.

    Raises:
        CommandError: no share of the address space is free, or the link can't be made.
    """
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]).stdout)
    destinations = (route["dst"] for route in routes if route["dst"] != "default")
    for share in free_slots(ipaddress.IPv4Network(destination, strict=False) for destination in destinations):
        # Making the link claims the share: its name is there once, whoever else is starting a cluster.
        link = ["ip", "link", "add", share.link, "type", "veth", "peer", "name", "eth0", "netns", str(node_pid)]
        made = run(link, check=False)
        if made.status == 0:
            _configure(share, node_pid)
            return share
        if "File exists" not in made.stderr:
            message = f"can't make a network link to the node: {made.stderr}"
            raise CommandError(message)
    message = f"no free network for one more test cluster in {SPACE}: stop another one, or look at `ip route`"
    raise CommandError(message)


def _configure(share: NodeNetwork, node_pid: int) -> None:
    here = ["ip"]
    there = ["nsenter", f"--target={node_pid}", "--net", "--", "ip"]
    for command in (
        [*here, "addr", "add", f"{share.machine}/30", "dev", share.link],
        [*here, "link", "set", share.link, "up"],
        [*there, "link", "set", "lo", "up"],
        [*there, "addr", "add", f"{share.node}/30", "dev", "eth0"],
        [*there, "link", "set", "eth0", "up"],
        [*there, "route", "add", "default", "via", share.machine],
        [*here, "route", "add", share.pods, "via", share.node],
        [*here, "route", "add", share.services, "via", share.node],
    ):
        run(command)
    forwarding = ["nsenter", f"--target={node_pid}", "--net", "--", "sysctl", "-qw", "net.ipv4.ip_forward=1"]
    run(forwarding)
