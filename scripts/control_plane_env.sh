#!/usr/bin/env bash
# Build .venv, the control plane's environment with the development tools, from the pinned constraints.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
stamp=$(cat constraints/dev.txt pyproject.toml scripts/control_plane_env.sh | sha256sum | cut -c1-16)
[ "$(cat .venv/.stamp 2>/dev/null)" = "$stamp" ] && exit 0
say "building the control plane's environment (.venv)"
uv=$(find_uv)
"$uv" venv --quiet --clear --python "$(find_python)" .venv
"$uv" pip install --quiet --python .venv/bin/python --no-deps -r constraints/dev.txt
PACELINE_CPU_KERNELS=Skip "$uv" pip install --quiet --python .venv/bin/python --no-deps -e .
echo "$stamp" > .venv/.stamp
