# Our host against the kernel's target over rxe, ours on the built-in RoCEv2: everything from discover to an outage under load.
#
# set: soak
# needs: nvmf nvmf_roce nvmet
# timeout: 400s

initiator_suite roce
