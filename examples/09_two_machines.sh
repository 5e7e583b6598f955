#!/bin/sh
# Starts 09_two_machines.py on two machines. Call it on both, with the address by which the second
# machine reaches the first, and the number of the machine:
#
#     sh examples/09_two_machines.sh 10.77.0.1 0     # on the first machine
#     sh examples/09_two_machines.sh 10.77.0.1 1     # on the second
#
# To try it on one machine, call both there, with GLOO_SOCKET_IFNAME=lo before them and the address
# 127.0.0.1. Nothing is encrypted: use a private network or a tunnel (docs/several-machines.md).
set -eu
address=$1 number=$2
shift 2
exec torchrun --nnodes 2 --node-rank "$number" --master-addr "$address" \
    --master-port "${PORT:-29500}" --nproc-per-node 1 "$(dirname "$0")/09_two_machines.py" "$@"
