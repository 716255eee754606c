"""A Kubernetes with Paceline on this machine, for a developer: `make cluster`, `make cluster-down`."""

import argparse
import os
import sys
from pathlib import Path

from testbed.commands import CommandError, kubernetes_command
from testbed.developer import DeveloperCluster
from testbed.paceline import Images, chart_values, install, node_mounts

EXAMPLES = """examples:
  make cluster                        start it, install Paceline, and print how to reach it
  eval "$(make -s cluster)"           the same, and reach it from this shell
  make cluster-down                   end it, and remove all that is left of it
"""

NEXT_STEPS = """In a shell with the two lines printed last:
  kubectl apply -f examples/cpu-tiny.yaml       a profile, whose engine is ready in a minute or two
  kubectl get ifp -w                            watch it come up
  kubectl patch ifp cpu-tiny --type=merge -p '{"spec": {"pacing": {"mode": "Fixed", "interval": 4}}}'
  curl http://$(kubectl get svc cpu-tiny -o jsonpath={.spec.clusterIP})/v1/models
  make cluster-down                             end the cluster, and remove all that is left of it
"""


def say(text: str) -> None:
    """Tell of progress, apart from what a shell may evaluate."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def up(developer: DeveloperCluster, *, bare: bool) -> None:
    """Start the cluster unless it runs, and print what a shell needs to use it."""
    if developer.running:
        say("the cluster is running already; `make cluster-down` ends it")
    else:
        mounts = {} if bare else node_mounts()
        images = None if bare else Images.build()
        say("starting Kubernetes")
        cluster = developer.start(mounts)
        if images is not None:
            say("loading Paceline's images")
            images.load(cluster)
            say("installing Paceline")
            print(install(cluster, chart_values(images)).stdout, file=sys.stderr)
            say(NEXT_STEPS)
    folders = {str(kubernetes_command(name).parent) for name in ("kubectl", "helm")}
    print(f"export KUBECONFIG={developer.kubeconfig}")
    print(f'export PATH="{":".join(sorted(folders))}:$PATH"')


def main() -> int:
    """Run the command line; 1 with a message for what went wrong."""
    parser = argparse.ArgumentParser(
        prog="testbed", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("--bare", action="store_true", help="only Kubernetes: no images, and Paceline not installed")
    parser.add_argument("--folder", type=Path, help="where the cluster keeps its data (default: in Paceline's cache)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("error: a node needs root: try it with sudo --preserve-env=PATH", file=sys.stderr)
        return 1
    try:
        developer = DeveloperCluster(options.folder)
        if options.action == "up":
            up(developer, bare=options.bare)
        else:
            say("the cluster is gone" if developer.remove() else "there was no cluster")
    except (CommandError, AssertionError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
