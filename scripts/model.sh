#!/usr/bin/env bash
# Make the tiny model in the cache, keyed by the script that makes it, and print its folder.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
bash scripts/engine_env.sh
folder=$CACHE/model-tiny-$(sha256sum < scripts/make_tiny_model.py | cut -c1-16)
exec 9>"$folder.lock"
flock 9
if [ ! -f "$folder/config.json" ]; then
  say "making the tiny model"
  rm -rf "$folder.part"
  .venv-engine-0.32/bin/python -P scripts/make_tiny_model.py "$folder.part" >&2
  mv "$folder.part" "$folder"
fi
# The weights are written for their owner only; an engine in a pod is another user.
chmod -R a+rX "$folder"
echo "$folder"
