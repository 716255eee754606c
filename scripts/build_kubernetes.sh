#!/usr/bin/env bash
# Print the paths of Kubernetes' commands, etcd, CoreDNS and Helm, one a line, building those that are not there yet.
#
# usage: scripts/build_kubernetes.sh [COMMAND...]     default: all of them
#
# A command of your own is taken as it is from KUBEBUILDER_ASSETS, or from the PATH when it has the version wanted here.
# The others are built from Go modules into the cache: about 15 minutes of two cores once, then nothing. Which versions
# those are stands in the go.mod files of tests/cluster/testbed/go, and what they may contain in the go.sum files.
set -euo pipefail
source "$(dirname "$0")/common.sh"
MODULES=$ROOT/tests/cluster/testbed/go
KUBERNETES="kube-apiserver kubectl kube-controller-manager kube-scheduler kubelet kube-proxy"
ALL="etcd $KUBERNETES pause coredns helm"

version_of() { sed -nE "s#^(require)?[[:space:]]*$2 (v[0-9.]+)( // indirect)?\$#\2#p" "$MODULES/$1/go.mod" | head -1; }

module_of() {
  case " $KUBERNETES " in *" $1 "*) echo kubernetes ;; *) echo "$1" ;; esac
}

package_of() {
  case $1 in
    kube*) echo "k8s.io/kubernetes/cmd/$1" ;;
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    helm) echo helm.sh/helm/v4/cmd/helm ;;
    *) echo . ;;
  esac
}

# Without these a command calls itself v0.0.0, and Helm's comparison of versions fails.
linker_flags_of() {
  case $1 in
    kube*) echo "-s -w -X k8s.io/component-base/version.gitVersion=$(version_of kubernetes k8s.io/kubernetes)" ;;
    helm) echo "-s -w -X helm.sh/helm/v4/internal/version.version=$(version_of helm helm.sh/helm/v4)" ;;
    *) echo "-s -w" ;;
  esac
}

# The user's own command, where it will do.
find_own() {
  local own version
  if [ -x "${KUBEBUILDER_ASSETS:-}/$1" ]; then echo "$KUBEBUILDER_ASSETS/$1"; return; fi
  own=$(command -v "$1") || return 0
  case $1 in
    kubectl) version=$("$own" version --client 2>/dev/null | sed -n 's/^Client Version: //p') ;;
    kube*) version=$("$own" --version 2>/dev/null | sed -n 's/^Kubernetes //p') ;;
    etcd) version=$("$own" --version 2>/dev/null | sed -n 's/^etcd Version: /v/p') ;;
    helm) version=$("$own" version --template '{{.Version}}' 2>/dev/null) ;;
    *) return 0 ;;
  esac
  case $1 in
    kube*) [ "$version" = "$(version_of kubernetes k8s.io/kubernetes)" ] && echo "$own" ;;
    etcd) [ "$version" = "$(version_of etcd go.etcd.io/etcd/server/v3)" ] && echo "$own" ;;
    helm) [ "$version" = "$(version_of helm helm.sh/helm/v4)" ] && echo "$own" ;;
  esac
  return 0
}

build() {
  local name=$1 target=$2
  command -v go >/dev/null || die "$name has to be built, and there is no Go: install Go 1.26 or newer, or name a folder that holds $name with KUBEBUILDER_ASSETS"
  say "building $name (once; minutes where Go's own cache is cold)"
  (cd "$MODULES/$(module_of "$name")" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false \
    -ldflags="$(linker_flags_of "$name")" -o "$target.part" "$(package_of "$name")") >&2
  mv "$target.part" "$target"
}

for name in ${*:-$ALL}; do
  case " $ALL " in *" $name "*) ;; *) die "no command is called $name here; known are: $ALL" ;; esac
  own=$(find_own "$name")
  if [ -n "$own" ]; then echo "$own"; continue; fi
  module=$MODULES/$(module_of "$name")
  key=$({ find "$module" -type f | sort | xargs cat; linker_flags_of "$name"; uname -m; } | sha256sum | cut -c1-16)
  folder=$CACHE/kubernetes/$name-$key
  if [ ! -x "$folder/$name" ]; then
    mkdir -p "$folder"
    exec 9>"$folder/lock"
    flock 9
    [ -x "$folder/$name" ] || build "$name" "$folder/$name"
    exec 9>&-
  fi
  echo "$folder/$name"
done
