"""The Linux namespaces that a test node lives in, so that it changes nothing on the machine and leaves nothing behind.

The node's daemons and containers have processes, mounts and network devices of their own, as in a container. They end
with the sandbox's first process, and with the last of them the kernel takes mounts, devices and firewall rules away.
"""

import contextlib
import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path

from testbed import cgroups
from testbed.commands import Answer, run
from testbed.processes import Process
from testbed.waiting import wait_until

KERNEL_SETTINGS = {
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
"""What kubelet wants of the kernel. It is shown files that say so, for it would set them on the whole machine."""


class Sandbox:
    """The namespaces of one node, with its files in `folder`.

    `mounts` names what the node shall see of the machine's folders, to read only: paths below /var/lib on the node, and
    where they come from.
    """

    def __init__(self, folder: Path, pause: Path, mounts: Mapping[str, Path], *, outlives_parent: bool = False) -> None:
        self.folder = folder
        self.mounts = dict(mounts)
        self.cgroup = folder.parent.name
        command = ["unshare", "--fork", "--kill-child=KILL", "--pid", "--mount-proc", "--mount", "--net", "--", pause]
        self.process = Process("sandbox", command, folder / "sandbox.log", outlives_parent=outlives_parent)
        self.pid = 0

    def start(self) -> None:
        """Make the namespaces and mount what the node needs in them. Needs root."""
        self.process.start()
        self.pid = wait_until(self._first_process, "the sandbox's first process", details=self.process.log_tail)
        cgroups.create(self.cgroup)
        self.run("sh", "-euc", self._mount_script())

    def stop(self) -> None:
        """End everything in the sandbox and wait until it is gone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.process.kill()
        wait_until(lambda: cgroups.remove(self.cgroup), "the node's control groups are empty")

    def inside(self, *command: object) -> list[str]:
        """Return the argument vector that runs a command in the sandbox."""
        return [str(word) for word in ("nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--", *command)]

    def run(self, *command: object, check: bool = True, seconds: float = 120) -> Answer:
        """Run a command in the sandbox to its end."""
        return run(self.inside(*command), check=check, seconds=seconds)

    def _first_process(self) -> int:
        self.process.check()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        # Its /proc is mounted once it runs what it was started for.
        return int(children[0]) if children and Path(f"/proc/{children[0]}/comm").read_text() == "pause\n" else 0

    def _mount_script(self) -> str:
        node, quoted, lib = self.folder, shlex.quote(str(self.folder)), shlex.quote(str(self.folder / "lib"))
        for name in ("lib/upper", "lib/work", "log", "kernel"):
            (node / name).mkdir(parents=True)
        lines = [
            # A peer group of the sandbox's own: mounts reach its containers, never the machine.
            "mount --make-rshared /",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            f"mount -t overlay overlay /var/lib -o lowerdir=/var/lib,upperdir={lib}/upper,workdir={lib}/work",
            f"mount --bind {quoted}/log /var/log",
            # The machine's name servers are out of reach; a link to them may point into /run.
            "resolv=$(readlink -m /etc/resolv.conf); mkdir -p $(dirname $resolv); [ -e $resolv ] || : > $resolv",
            f"mount --bind {quoted}/resolv.conf $resolv",
        ]
        for setting, value in KERNEL_SETTINGS.items():
            shown = node / "kernel" / setting.replace("/", ".")
            shown.write_text(value + "\n")
            lines.append(f"[ ! -e /proc/sys/{setting} ] || mount --bind {shlex.quote(str(shown))} /proc/sys/{setting}")
        for target, source in self.mounts.items():
            where, what = shlex.quote(target), shlex.quote(str(source))
            lines += [f"mkdir -p {where}", f"mount --bind {what} {where}", f"mount -o remount,bind,ro {where}"]
        return "\n".join(lines)
