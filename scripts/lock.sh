#!/usr/bin/env bash
# Write the constraint files anew from their inputs: the newest versions that fit. No registry address is recorded.
#
# usage: scripts/lock.sh [VERSION ...]      engine versions to lock beside the control plane; all of them by default
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
uv=$(find_uv)
compile() { "$uv" pip compile --quiet --no-emit-index-url --no-header --no-annotate --python "$(find_python)" "$@"; }
compile pyproject.toml --extra dev -o constraints/dev.txt
# What the image of the control plane holds: a part of the above, in the same versions.
compile pyproject.toml --extra operator --extra api --constraint constraints/dev.txt -o constraints/control-plane.txt
[ $# -gt 0 ] || set -- $(ls constraints/engine-*.in | sed 's/.*-//; s/.in$//')
for version; do
  if [ -f "constraints/engine-scheduler-$version.in" ]; then
    # On top of an engine's packages: only what those lack or have in another version.
    compile "constraints/engine-scheduler-$version.in" --no-deps -o "constraints/engine-scheduler-$version.txt"
  else
    compile "constraints/engine-cpu-$version.in" --override "constraints/engine-cpu-$version.overrides" -o "constraints/engine-cpu-$version.txt"
  fi
done
