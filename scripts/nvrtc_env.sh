#!/usr/bin/env bash
# Put NVRTC and its headers into the cache and print the folder, for PACELINE_NVRTC_HOME. No GPU is needed to compile.
# CUDA 12 on purpose: the newer NVRTC of the engine's environment no longer compiles for sm_70.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
home=$CACHE/nvrtc-$(sha256sum < constraints/nvrtc.txt | cut -c1-16)
exec 9>"$home.lock"
flock 9
if [ ! -f "$home/.complete" ]; then
  say "installing NVRTC into the cache (320 MB)"
  "$(find_uv)" pip install --quiet --no-deps --python "$(find_python)" --target "$home" -r constraints/nvrtc.txt
  touch "$home/.complete"
fi
echo "$home"
