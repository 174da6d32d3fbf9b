#!/bin/bash
# Process 1 of the guest once the machine's root is mounted. Sets up devices,
# the network and RDMA, does what the runner queued, and powers off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb LANG=C.UTF-8
SHARE=/run/lab/share
set -u

power_off() {
	sync
	echo o >/proc/sysrq-trigger
	sleep 60
}
trap power_off EXIT

. "$SHARE/boot.env" # LAB, REPO, MODULES, RUN_TIMEOUT and what the runner passed on
. "$LAB/guest/setup.sh"
setup_guest >"$SHARE/setup.log" 2>&1 || { echo failed >"$SHARE/ready"; exit 1; }
cut -d' ' -f1 /proc/uptime >"$SHARE/ready"

case $MODE in
exec) . "$LAB/guest/exec.sh" ;;
scenarios) . "$LAB/guest/scenarios.sh" ;;
shell) setsid --ctty --wait bash -i <>/dev/ttyS1 >&0 2>&1 ;;
esac
