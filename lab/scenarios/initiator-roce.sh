# Our host against the kernel's target over rxe, ours on the built-in RoCEv2: everything from discover to an outage under load.
#
# set: soak
# needs: nvmf nvmf_roce nvmet
# timeout: 400s
# kernel-may: nvmet: connect request for invalid subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z-]+!
# kernel-may: nvmet: connect by host nqn\S+ for subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z]+-closed not allowed

initiator_suite roce
