#!/usr/bin/env bash
# Make the hybrid model with a 784-token page in the cache, keyed by the scripts that make it, and print its folder.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
bash scripts/engine_env.sh
folder=$CACHE/model-page-$(cat scripts/make_page_model.py scripts/make_tiny_model.py | sha256sum | cut -c1-16)
exec 9>"$folder.lock"
flock 9
if [ ! -f "$folder/config.json" ]; then
  say "making the model with a 784-token page"
  rm -rf "$folder.part"
  .venv-engine-0.32/bin/python -P scripts/make_page_model.py "$folder.part" >&2
  mv "$folder.part" "$folder"
fi
echo "$folder"
