# Our host against the kernel's target over rxe through verbs: everything from discover to an outage under load.
#
# set: soak
# needs: roce nvmet nvmf
# timeout: 400s
# kernel-may: nvmet: connect request for invalid subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z-]+!
# kernel-may: nvmet: connect by host nqn\S+ for subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z]+-closed not allowed

initiator_suite verbs
