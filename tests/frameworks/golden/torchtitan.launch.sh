#!/usr/bin/env bash
# llama3-8b, 32 devices of dgx-h100: for torchtitan 0.3.0.
# Priced: 2.736 s per step, 191,640 tokens/s.
# Processes: 8 on node 0..3.
#
# Arguments of this script go to the program, behind all others.
set -euo pipefail

MASTER_ADDR=${MASTER_ADDR:-node0}
MASTER_PORT=${MASTER_PORT:-29500}
export PYTHONPATH=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)${PYTHONPATH:+:$PYTHONPATH}


here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
process='set -eu
export RANK=$OMPI_COMM_WORLD_RANK
export LOCAL_RANK=$(grep " $RANK\$" "$0/ranks" | cut -d" " -f2) WORLD_SIZE=32
exec python "$@"'
export MASTER_ADDR MASTER_PORT
mpirun -np 32 --hostfile "$here/hostfile" --map-by "rankfile:file=$here/rankfile" --bind-to none \
  -x MASTER_ADDR -x MASTER_PORT -x PYTHONPATH -x BASE bash -c "$process" "$here" \
  -m torchtitan.train --module plan_config --config plan "$@"
