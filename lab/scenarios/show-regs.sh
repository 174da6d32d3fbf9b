# nvme show-regs: every register there is, and nothing said of those that there are not.
#
# set: quick
# needs: target roce
# timeout: 180s

NQN=nqn.2026-11.io.nvmf:lab-regs
start_target <<END
$(front)
backends:
  - {name: ram, type: mem, size: 16MiB}
subsystems:
  - {nqn: $NQN, hosts: any, namespaces: [{nsid: 1, backend: ram}]}
END
connect $NQN
dev=/dev/$CTRL
errors=$(nvme smart-log "$dev" -o json | jq .num_err_log_entries)
run nvme show-regs "$dev"
check_text show-regs "$(nvme show-regs "$dev")" 'cap *: *[1-9a-f]' 'version *: *20000' 'cc *: *460061' 'csts *: *1$'
check_text "show-regs -H" "$(nvme show-regs "$dev" -H)" '\(MQES\) *: *128' '\(RDY\) *: *(Ready|Yes)' '\(EN\) *: *Yes'
check_json "show-regs as JSON" "$(nvme show-regs "$dev" -o json)" '.vs == 131072' '.csts == 1'
check_eq "entries of the error log" "$(nvme smart-log "$dev" -o json | jq .num_err_log_entries)" "$errors"
