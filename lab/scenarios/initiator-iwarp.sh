# Our host against the kernel's target over siw, ours on the built-in iWARP: everything from discover to an outage under load.
#
# set: soak
# needs: nvmf nvmf_iwarp nvmet
# timeout: 400s

initiator_suite iwarp
