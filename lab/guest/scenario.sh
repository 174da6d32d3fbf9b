# Runs one scenario: NAME NEEDS... The library first, then what it needs, then
# the script itself, then the orderly end.
set -Eeuo pipefail
shopt -s inherit_errexit lastpipe # lastpipe: "config | start_target" sets variables here

SCENARIO=$1
OUT=$SHARE/$SCENARIO     # logs, kept on the machine
WORK=/scratch/$SCENARIO  # files for backends: ext4, O_DIRECT, holes; gone afterwards
RUN=/run/lab/$SCENARIO   # sockets, mount points; gone afterwards
shift

for library in checks host target nvmet load initiator; do . "$LAB/guest/$library.sh"; done

on_error() { echo "FAIL: line ${BASH_LINENO[0]} of ${BASH_SOURCE[1]##*/}: $1 (exit code $2)"; }
trap 'on_error "$BASH_COMMAND" $?' ERR

for need in "$@"; do "need_$need"; done
. "$LAB/scenarios/$SCENARIO.sh"
disconnect_all
stop_target
finish_checks
