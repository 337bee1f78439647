#!/bin/sh
# PyTorch with Antiphon next to Gloo between hosts with unequal networks: hosts.sh PYTHON RATE..., as root. Each rate, in Mbit/s, is
# that of one host: a network namespace whose interface is shaped in both directions.
#
#     python/bench/hosts.sh target/python/torch/bin/python 800 800 400 200
set -eu
python=$(command -v "$1")
shift
here=$(cd "$(dirname "$0")" && pwd)
hosts=$(($#))
secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

remove() {
    for name in $(ip netns list | cut -d ' ' -f 1 | grep "^antiphon-bench-" || true); do
        ip netns pids "$name" | xargs -r kill -9
        ip netns del "$name"
    done
}
remove
trap remove EXIT INT TERM

switch=antiphon-bench-switch
ip netns add "$switch"
ip -n "$switch" link add bridge type bridge
ip -n "$switch" link set bridge up

shape() { # NAMESPACE INTERFACE RATE
    ip netns exec "$1" tc qdisc add dev "$2" root handle 1: htb default 1 r2q 1000
    ip netns exec "$1" tc class add dev "$2" parent 1: classid 1:1 htb rate "$3mbit" burst 16k cburst 16k
}
number=0
for rate; do
    host=antiphon-bench-$number
    ip netns add "$host"
    ip link add "port$number" netns "$switch" type veth peer name eth0 netns "$host"
    ip -n "$switch" link set "port$number" master bridge
    ip -n "$switch" link set "port$number" up
    ip -n "$host" addr add "10.77.0.$((number + 1))/24" dev eth0
    ip -n "$host" link set eth0 up
    ip -n "$host" link set lo up
    shape "$host" eth0 "$rate"
    shape "$switch" "port$number" "$rate"
    number=$((number + 1))
done

for backend in gloo antiphon gloo antiphon; do
    number=0
    while [ "$number" -lt "$hosts" ]; do
        ip netns exec "antiphon-bench-$number" env RANK="$number" LOCAL_RANK=0 WORLD_SIZE="$hosts" MASTER_ADDR=10.77.0.1 \
            MASTER_PORT=29511 GLOO_SOCKET_IFNAME=eth0 ANTIPHON_SECRET="$secret" ANTIPHON_HOST="host$number" OMP_NUM_THREADS=1 \
            timeout 300 "$python" "$here/latency.py" "$backend" slow &
        number=$((number + 1))
    done
    # Gloo may end with an error after all is done.
    wait || true
done
