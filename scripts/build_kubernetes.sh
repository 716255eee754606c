#!/usr/bin/env bash
# Print a folder with Kubernetes' commands, etcd, CoreDNS and Helm, building those that are not there yet.
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
kubernetes_version=$(version_of kubernetes k8s.io/kubernetes)

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

# The user's own command, where it will do.
find_own() {
  local own
  if [ -x "${KUBEBUILDER_ASSETS:-}/$1" ]; then echo "$KUBEBUILDER_ASSETS/$1"; return; fi
  own=$(command -v "$1") || return 0
  case $1 in
    kubectl) [[ $("$own" version --client 2>/dev/null | head -1) == *" $kubernetes_version" ]] && echo "$own" ;;
    kube*) [ "$("$own" --version 2>/dev/null)" = "Kubernetes $kubernetes_version" ] && echo "$own" ;;
    etcd) [[ $("$own" --version 2>/dev/null) == *" $(version_of etcd go.etcd.io/etcd/server/v3 | tr -d v)"$'\n'* ]] && echo "$own" ;;
    helm) [ "$("$own" version --template '{{.Version}}' 2>/dev/null)" = "$(version_of helm helm.sh/helm/v4)" ] && echo "$own" ;;
  esac
  return 0
}

build() {
  local name=$1 folder=$2 flags="-s -w"
  [ "$(module_of "$name")" = kubernetes ] && flags="$flags -X k8s.io/component-base/version.gitVersion=$kubernetes_version"
  [ "$name" = helm ] && flags="$flags -X helm.sh/helm/v4/internal/version.version=$(version_of helm helm.sh/helm/v4)"
  command -v go >/dev/null || die "$name has to be built, and there is no Go: install Go 1.26 or newer, or name a folder that holds $name with KUBEBUILDER_ASSETS"
  say "building $name (once; minutes where Go's own cache is cold)"
  (cd "$MODULES/$(module_of "$name")" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false \
    -ldflags="$flags" -o "$folder/$name.part" "$(package_of "$name")") >&2
  mv "$folder/$name.part" "$folder/$name"
}

wanted=${*:-$ALL}
key=$({ cat "$MODULES"/*/go.mod "$MODULES"/*/go.sum "$MODULES"/*/*.go "$ROOT/scripts/build_kubernetes.sh"; echo "${KUBEBUILDER_ASSETS:-}"; uname -m; } | sha256sum | cut -c1-16)
folder=$CACHE/kubernetes-$kubernetes_version-$key
mkdir -p "$folder"
for name in $wanted; do
  case " $ALL " in *" $name "*) ;; *) die "no command is called $name here; known are: $ALL" ;; esac
  [ -x "$folder/$name" ] && continue
  exec 9>"$folder/$name.lock"
  flock 9
  [ -x "$folder/$name" ] && continue
  own=$(find_own "$name")
  if [ -n "$own" ]; then ln -sf "$own" "$folder/$name"; else build "$name" "$folder"; fi
done
echo "$folder"
