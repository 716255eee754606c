"""The one cluster that `make cluster` leaves running, and how `make cluster-down` finds and ends it."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

from testbed import cgroups
from testbed.cluster import Cluster
from testbed.commands import cache_folder
from testbed.waiting import wait_until


class DeveloperCluster:
    """A cluster in a folder of the cache, or another; its processes are known by their ids and start times."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder() / "developer-cluster"
        self.kubeconfig = self.folder / "api" / "kubeconfig"
        self._record = self.folder / "processes.json"

    @property
    def running(self) -> bool:
        """Whether the cluster runs: not half of it, and not since before the machine was restarted."""
        recorded = self._recorded()
        return bool(recorded) and all(_start_time(pid) == started for pid, started in recorded.items())

    def start(self, cluster_mounts: dict[str, Path]) -> Cluster:
        """Start the cluster, in the place of what may be left of an earlier one."""
        self.remove()
        self.folder.mkdir(parents=True, mode=0o700)
        cluster = Cluster(self.folder, cluster_mounts, outlives_parent=True)
        try:
            cluster.start()
        except BaseException:
            cluster.stop()
            shutil.rmtree(self.folder)
            raise
        pids = [process.pid for process in (*cluster.node.processes, *cluster.api.processes)]
        self._record.write_text(json.dumps({pid: _start_time(pid) for pid in (cluster.node.sandbox.pid, *pids)}))
        return cluster

    def remove(self) -> bool:
        """End the cluster and remove all that is left of it; tell whether there was one."""
        if not self.folder.exists():
            return False
        recorded = self._recorded().items()
        for pid, started in recorded:
            if _start_time(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(_start_time(pid) != started for pid, started in recorded), "the processes are gone")
        wait_until(lambda: cgroups.remove(self.folder.name), "the node's control groups are empty")
        shutil.rmtree(self.folder)
        return True

    def _recorded(self) -> dict[int, str]:
        if not self._record.exists():
            return {}
        return {int(pid): started for pid, started in json.loads(self._record.read_text()).items()}


def _start_time(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty where there is none, or only its exit status."""
    try:
        # The command's name is in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
