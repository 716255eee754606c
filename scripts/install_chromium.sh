#!/usr/bin/env bash
# Install Chromium for the browser tests, where there is none: from the distribution, so that it brings its libraries.
set -euo pipefail
source "$(dirname "$0")/common.sh"
command -v chromium >/dev/null && exit 0
command -v apt-get >/dev/null || die "no Chromium found, and no apt-get to install it with: install chromium yourself"
[ "$(id -u)" = 0 ] || die "no Chromium found: install it as root (apt-get install chromium)"
say "installing Chromium"
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null \
  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; }
