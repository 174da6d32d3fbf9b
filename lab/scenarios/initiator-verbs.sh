# Our host against the kernel's target over rxe through verbs: everything from discover to an outage under load.
#
# set: soak
# needs: roce nvmet nvmf
# timeout: 400s

initiator_suite verbs
