#!/usr/bin/env bash
# The demonstration: a paced vLLM engine on this machine's CPU, measured with pacing off and with N=4.
#
# usage: scripts/demo.sh        (make demo)   KEEP=1 leaves the engine, the control API and the dashboard running
#
# Everything that it writes lies in .demo/: the profile, the state folder with logs and database, the plot.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$ROOT"
KEEP=${KEEP:-}
DEMO=$ROOT/.demo
PLOT=$DEMO/resident-rate.png
export PACELINE_STATE_DIR=$DEMO/state
# The demo talks to its own run, whatever the shell is set up for.
unset PACELINE_API_URL PACELINE_API_TOKEN_FILE PACELINE_ENGINE_PYTHON
paceline=.venv/bin/paceline
up_pid=
kept=
judged=

finish() {
  local status=$?
  trap - EXIT INT TERM
  if [ -n "$up_pid" ] && kill -0 "$up_pid" 2>/dev/null; then
    if [ -n "$kept" ]; then exit "$status"; fi
    say "stopping the engine and the control API"
    kill "$up_pid"
    wait "$up_pid" || true
  fi
  if [ "$status" != 0 ] && [ "$status" != 130 ] && [ -z "$judged" ]; then
    printf 'error: the demo ended with status %s after %s s. Logs:\n' "$status" "$SECONDS" >&2
    ls "$DEMO"/up.log "$PACELINE_STATE_DIR"/default/cpu-tiny/*.log >&2 2>/dev/null || true
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "$DEMO"
bash scripts/control_plane_env.sh
bash scripts/engine_env.sh
model=$(bash scripts/model.sh)
if "$paceline" status cpu-tiny --output json 2>/dev/null | grep -q '"running"\|"starting"'; then
  judged=1
  die "a demo is still running: stop it with PACELINE_STATE_DIR=$PACELINE_STATE_DIR $paceline down cpu-tiny"
fi
sed "s|file:///.*|file://$model|" examples/cpu-tiny.yaml > "$DEMO/cpu-tiny.yaml"

say "starting the profile .demo/cpu-tiny.yaml (paceline up)"
rm -f "$DEMO/up.json"
# In a session of its own: Ctrl-C reaches this script only, which then stops it in order. Its progress goes to the
# terminal as well as to a file.
setsid "$paceline" up "$DEMO/cpu-tiny.yaml" --port 0 --admin-port 0 --api-port 0 --output json \
  > "$DEMO/up.json" 2> >(tee -i "$DEMO/up.log" >&2) &
up_pid=$!
until grep -q '^}' "$DEMO/up.json" 2>/dev/null; do
  kill -0 "$up_pid" 2>/dev/null || { wait "$up_pid"; exit 1; }
  sleep 0.5
done
say "ready ${SECONDS} s after the start of the demo"
"$paceline" status

say "measuring: two residents decode, a cold prompt arrives; pacing off and N=4 alternate"
id=$("$paceline" experiment run cpu-tiny --plan examples/experiment-mixed-phase.yaml --no-follow)
"$paceline" experiment show "$id" --follow > "$DEMO/experiment.txt"

say "changing the pacing live, on the running engine"
"$paceline" pace cpu-tiny --interval 8
"$paceline" pace cpu-tiny --mode Disabled

say "the result, from the stored experiment $id (paceline report)"
believed=0
"$paceline" report "$id" --plot "$PLOT" | tee "$DEMO/report.txt" || believed=$?
api=$("$paceline" status cpu-tiny --output json | sed -n 's/.*"apiUrl": "\(.*\)".*/\1/p')
say "done in ${SECONDS} s; plot: ${PLOT#"$ROOT"/}"
if [ -n "$KEEP" ]; then
  disown "$up_pid"
  kept=1
  cat <<TEXT
Dashboard: $api/#token=$(cat "$PACELINE_STATE_DIR/default/cpu-tiny/api-token")
Still running. Try:
  export PACELINE_STATE_DIR=$PACELINE_STATE_DIR PATH=$ROOT/.venv/bin:\$PATH
  paceline status
  paceline pace cpu-tiny --interval 4
  paceline experiment run cpu-tiny --arm off --arm 8
  paceline recommend --slo 80ms
  paceline down cpu-tiny
TEXT
else
  cat <<TEXT
The dashboard was at $api/ (make demo KEEP=1 leaves it running). The experiment stays; which N keeps a promise, by it:
  PACELINE_STATE_DIR=$PACELINE_STATE_DIR .venv/bin/paceline recommend --slo 80ms
TEXT
fi
judged=1
exit "$believed"
