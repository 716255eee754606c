#!/usr/bin/env bash
# Install what a test node and its images need: containerd, runc, network plugins, iptables, debootstrap, buildah.
#
# Only for tests on which pods really run. Does nothing where the commands are there already, however they came.
set -euo pipefail
source "$(dirname "$0")/common.sh"
COMMANDS=(containerd ctr runc iptables conntrack debootstrap buildah ip nsenter unshare setpriv openssl)
missing=()
for command in "${COMMANDS[@]}"; do command -v "$command" >/dev/null || missing+=("$command"); done
[ -x /usr/lib/cni/ptp ] || missing+=("/usr/lib/cni/ptp")
[ ${#missing[@]} -eq 0 ] && exit 0
command -v apt-get >/dev/null || die "missing: ${missing[*]}. Install containerd, runc, the CNI plugins (in /usr/lib/cni), iptables, conntrack, debootstrap and buildah"
[ "$(id -u)" = 0 ] || die "missing: ${missing[*]}. Run as root: scripts/node_packages.sh"
say "installing packages for the test node (missing: ${missing[*]})"
export DEBIAN_FRONTEND=noninteractive
packages=(containerd runc containernetworking-plugins iptables conntrack debootstrap buildah iproute2 util-linux openssl)
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null 2>&1 \
  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
