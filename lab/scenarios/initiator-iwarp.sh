# Our host against the kernel's target over siw, ours on the built-in iWARP: everything from discover to an outage under load.
#
# set: soak
# needs: nvmf nvmf_iwarp nvmet
# timeout: 400s
# kernel-may: nvmet: connect request for invalid subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z-]+!
# kernel-may: nvmet: connect by host nqn\S+ for subsystem nqn\.2026-11\.io\.nvmf\.lab:[a-z]+-closed not allowed
# siw refuses what nvmet posts on a queue pair that nvmet itself has disconnected under load:
# kernel-may: nvmet_rdma: (post_recv cmd failed|sending cmd response failed)
# kernel-may: nvmet_rdma: received IB QP event: (QP fatal error \(1\)|send queue drained \(5\))

initiator_suite iwarp
