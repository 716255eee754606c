#!/usr/bin/env bash
# Print the path of a base image for tests: the machine's own distribution and Python 3.12, as a tar of a root folder.
#
# It stands in for python:3.12-slim where no container registry can be reached, and what was built for this machine's
# Python runs in it. Packages come from the mirror that apt is set up with. Needs root; about a minute, then cached.
set -euo pipefail
source "$(dirname "$0")/common.sh"
# Of the engine, whose own packages expect them.
PACKAGES=(ca-certificates libgomp1 libnuma1 libstdc++6)
source /etc/os-release
[ -n "${VERSION_CODENAME:-}" ] && command -v apt-get >/dev/null \
  || die "the test images are made from Debian's or Ubuntu's packages: this machine has no apt"
suite=$VERSION_CODENAME
python=$(find_python)
prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
key=$({ cat "$ROOT/scripts/base_image.sh"; echo "$suite $prefix"; "$python" -VV; uname -m; } | sha256sum | cut -c1-16)
target=$CACHE/base-image-$key.tar
exec 9>"$target.lock"
flock 9
if [ ! -f "$target" ]; then
  [ "$(id -u)" = 0 ] || die "making the base image needs root (debootstrap)"
  mirror=$(apt-get indextargets --format '$(CODENAME) $(SITE)' 'Created-By: Packages' | awk -v suite="$suite" '$1 == suite {print $2; exit}')
  [ -n "$mirror" ] || die "apt knows no mirror for $suite: run apt-get update, and look at /etc/apt/sources.list"
  say "making the base image of the tests: $suite with $("$python" -V) (about a minute)"
  work=$(mktemp -d)
  trap 'rm -rf "$work" "$target.part"' EXIT
  # A distribution's own Python comes as its packages, any other as a copy, with the packages that it was linked with.
  if [ "$prefix" = /usr ]; then
    packages=("${PACKAGES[@]}" python3 python3-venv python3-pip)
  else
    modules=$(ls "$prefix"/lib/python3.12/lib-dynload/*.so | grep -v _tkinter)
    libraries=$(ldd "$prefix/bin/python3.12" $modules | awk '$3 ~ "^/" {print $3}' | sort -u | xargs realpath | grep -v "^$prefix")
    # dpkg knows some of them by their path from before /lib became a link to /usr/lib.
    owners=$(dpkg-query --search $libraries $(sed 's#^/usr##' <<<"$libraries") 2>/dev/null | cut -d: -f1 | sort -u || true)
    packages=("${PACKAGES[@]}" $owners)
  fi
  debootstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 \
    || { tail -20 "$work/log" >&2; die "debootstrap failed"; }
  rm -rf "$work/root"/var/cache/apt/archives/*.deb "$work/root"/var/lib/apt/lists/* "$work/root"/usr/share/{doc,man,locale}/*
  if [ "$prefix" != /usr ]; then
    mkdir -p "$work/root/usr/local"
    tar -C "$prefix" --exclude=__pycache__ --exclude='*.a' --exclude=lib/python3.12/test --exclude='lib/python3.12/site-packages/*' -c bin lib include \
      | tar -C "$work/root/usr/local" -x
    chroot "$work/root" sh -euc 'ldconfig; ln -sf python3.12 /usr/local/bin/python3; python3 -m ensurepip >/dev/null 2>&1'
  fi
  # The engines of the tests find vLLM's 6 GB of packages in a folder of their node.
  chroot "$work/root" python3 -c 'import sysconfig; print("/var/lib/paceline/vllm", file=open(sysconfig.get_path("purelib") + "/vllm.pth", "w"))'
  tar -C "$work/root" --numeric-owner -cf "$target.part" .
  mv "$target.part" "$target"
fi
echo "$target"
