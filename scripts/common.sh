# Shared by the shell scripts here: where slow things are cached, and which uv and Python are used.
# Sourced, not run. Callers have `set -euo pipefail` on.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${PACELINE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/paceline}
UV_VERSION=0.13.9
mkdir -p "$CACHE"
export UV_NO_PROGRESS=1 UV_LINK_MODE=${UV_LINK_MODE:-hardlink}

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# uv of a fixed version: the user's own where it fits, else a private copy in the cache.
find_uv() {
  if command -v uv >/dev/null && [ "$(uv --version | cut -d' ' -f2)" = "$UV_VERSION" ]; then command -v uv; return; fi
  local home=$CACHE/uv-$UV_VERSION
  if ! "$home/bin/uv" --version >/dev/null 2>&1; then
    say "installing uv $UV_VERSION into the cache"
    rm -rf "$home"
    "$(find_python)" -m venv "$home" && "$home/bin/pip" install --quiet --disable-pip-version-check "uv==$UV_VERSION" \
      || die "could not install uv: check the network and that python3 has the venv module (Debian: apt-get install python3-venv)"
  fi
  echo "$home/bin/uv"
}

# A Python 3.12: PACELINE_PYTHON, the PATH, or a pyenv version that is not on the PATH.
find_python() {
  local candidate
  for candidate in "${PACELINE_PYTHON:-}" python3.12 "$HOME"/.pyenv/versions/3.12*/bin/python3.12 python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'; return
    fi
  done
  die "no Python 3.12 found: install one, or name it with PACELINE_PYTHON=/path/to/python3.12"
}
