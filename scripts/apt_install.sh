#!/usr/bin/env bash
# Install packages of the distribution that a part of the check needs, unless the command that they bring is there:
# bash scripts/apt_install.sh COMMAND PACKAGE...
set -euo pipefail
source "$(dirname "$0")/common.sh"
[ $# -ge 2 ] || die "usage: bash scripts/apt_install.sh COMMAND PACKAGE..."
wanted=$1; shift
PATH=$PATH:/usr/sbin command -v "$wanted" >/dev/null && exit 0
command -v apt-get >/dev/null || die "$wanted is missing, and there is no apt-get to install it with: install it yourself"
[ "$(id -u)" = 0 ] || die "$wanted is missing: install it as root (apt-get install $*)"
say "installing $*"
export DEBIAN_FRONTEND=noninteractive
install_quietly() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
install_quietly "$@" 2>/dev/null || { apt-get update -qq && install_quietly "$@"; }
