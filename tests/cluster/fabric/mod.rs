//! Real hosts on one computer: network namespaces, joined by virtual cables and bridges, with shaped rates.
//!
//! The principal type is [`Cluster`], made from a [`Spec`] by `ip` and `tc` as root. Each host is a namespace. Each of
//! its NICs is one end of a veth pair (or of a [`cable`] with a delay); the other end is a port of a bridge in the
//! namespace of all switches. Both ends are shaped by htb, so that a NIC sends and receives at its rate. When the value
//! is dropped, the cluster and all its processes are removed; leftovers of a killed process are removed by the next
//! cluster.
//!
//! Three settings make rates exact even for short messages: a burst of 16 KB (a larger burst would let a short message
//! pass faster than the rate), segments of at most 16 KB (larger ones than the burst would be cut by the processor),
//! and queues that count bytes (a queue that counts packets holds up acknowledgements behind megabytes). `coarse`
//! clusters have none of them.

pub(crate) mod cable;
pub(crate) mod flow;
pub(crate) mod host;
mod place;
pub(crate) mod spec;
mod tools;

use cable::Cable;
pub(crate) use host::{Ended, Guest};
pub(crate) use place::Place;
pub(crate) use spec::{Family, Host, Nic, Spec, Switch, Uplink};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
pub(crate) use tools::sweep;
use tools::{configure, in_namespace, namespace};

/// The capacity of a queue: some tens of milliseconds at the rates in use.
const QUEUE: &str = "bfifo limit 262144";

/// Only one cluster exists at a time, because tests measure in it.
static TURN: Mutex<()> = Mutex::new(());

/// Hosts and switches, up and running.
pub(crate) struct Cluster {
    spec: Spec,
    /// The namespace of each host, and of the switches.
    hosts: Vec<String>,
    switches: String,
    cables: Vec<Cable>,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Builds a cluster. Where that is impossible, prints the reason, and the test ends.
    pub(crate) fn or_skip(spec: &Spec) -> Option<Self> {
        if let Some(reason) = tools::missing() {
            crate::binary::skip(&format!("hosts of network namespaces: {reason}"));
            return None;
        }
        Some(Self::build(spec).unwrap_or_else(|told| panic!("{spec:?}: {told}")))
    }

    fn build(spec: &Spec) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| namespace(&format!("{number}-{what}"));
        let hosts = (0..spec.hosts.len()).map(|host| name(&format!("h{host}"))).collect();
        // From here on, dropping the value removes what was built, even after an error.
        let mut cluster = Self { spec: spec.clone(), hosts, switches: name("net"), cables: Vec::new(), _turn: turn };
        cluster.found()?;
        for host in 0..spec.hosts.len() {
            for nic in 0..spec.hosts[host].nics.len() {
                cluster.plug(host, nic)?;
            }
        }
        Ok(cluster)
    }

    /// Makes namespaces and switches.
    fn found(&mut self) -> Result<(), String> {
        let all: Vec<String> =
            self.hosts.iter().chain([&self.switches]).map(|name| format!("netns add {name}")).collect();
        tools::ip(&all)?;
        configure(&self.switches, &[("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")])?;
        for host in &self.hosts {
            // The default congestion control may differ between computers, and the kernel remembers earlier streams between
            // runs.
            let settings = [
                ("ipv4/tcp_congestion_control", "reno"),
                ("ipv4/tcp_no_metrics_save", "1"),
                ("ipv4/conf/all/arp_ignore", "1"),
                ("ipv4/conf/all/arp_announce", "2"),
            ];
            configure(host, &settings[usize::from(self.spec.coarse)..])?;
            in_namespace("ip", host, &["link set lo up"])?;
        }
        let bridge = |id: usize| {
            format!("link add dev s{id} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set s{id} up")
        };
        let mut links: Vec<String> = (0..self.spec.switches.len()).map(bridge).collect();
        let mut shapes = Vec::new();
        for (id, switch) in self.spec.switches.iter().enumerate() {
            let Some(Uplink { to, rate }) = switch.uplink else { continue };
            links.push(format!("link add dev up{id} type veth peer name down{id}"));
            for (end, bridge) in [(format!("up{id}"), id), (format!("down{id}"), to)] {
                links.push(format!("link set {end} master s{bridge} {} up", self.segments()));
                shapes.extend(self.shape(&end, rate));
            }
        }
        in_namespace("ip", &self.switches, &links)?;
        in_namespace("tc", &self.switches, &shapes)
    }

    /// Makes a NIC, its cable, and its port of the switch.
    fn plug(&mut self, host: usize, nic: usize) -> Result<(), String> {
        let Nic { rate, switch, delay } = self.spec.hosts[host].nics[nic];
        let (device, port, home) = (format!("eth{nic}"), port(host, nic), &self.hosts[host]);
        if delay.is_zero() {
            let made = format!("link add dev {device} type veth peer name {port} netns {}", self.switches);
            in_namespace("ip", home, &[made])?;
        } else {
            let laid = Cable::lay([(home, &device), (&self.switches, &port)], delay);
            self.cables.push(laid.map_err(|error| format!("a cable with a delay: {error}"))?);
        }
        let [v4, v6] = [Family::V4, Family::V6].map(|family| Spec::address(host, nic, family));
        let up = [
            format!("addr add {v4}/24 dev {device}"),
            format!("addr add {v6}/64 dev {device} nodad"),
            format!("link set {device} {} up", self.segments()),
        ];
        in_namespace("ip", home, &up)?;
        in_namespace("ip", &self.switches, &[format!("link set {port} master s{switch} {} up", self.segments())])?;
        in_namespace("tc", home, &self.shape(&device, rate))?;
        in_namespace("tc", &self.switches, &self.shape(&port, rate))
    }

    /// The largest size of segments, as arguments of `ip`.
    fn segments(&self) -> &'static str {
        if self.spec.coarse { "" } else { "gso_max_size 16384" }
    }

    /// The commands that limit a device to a rate.
    fn shape(&self, device: &str, rate: u32) -> Vec<String> {
        if self.spec.coarse {
            return vec![format!("qdisc add dev {device} root tbf rate {rate}mbit burst 64kb latency 100ms")];
        }
        vec![
            format!("qdisc add dev {device} root handle 1: htb default 1 r2q 1000"),
            class("add", device, 1, rate),
            format!("qdisc add dev {device} parent 1:1 {QUEUE}"),
        ]
    }

    /// Unplugs the cable of a NIC. Both ends notice only that nothing arrives.
    pub(crate) fn cut(&self, host: usize, nic: usize) {
        self.set_port(host, nic, "nomaster");
    }

    /// Plugs the cable in again.
    pub(crate) fn restore(&self, host: usize, nic: usize) {
        let switch = self.spec.hosts[host].nics[nic].switch;
        self.set_port(host, nic, &format!("master s{switch}"));
    }

    fn set_port(&self, host: usize, nic: usize, words: &str) {
        let done = in_namespace("ip", &self.switches, &[format!("link set {} {words}", port(host, nic))]);
        done.unwrap_or_else(|told| panic!("host {host}, NIC {nic}: {told}"));
    }

    /// Changes a setting of a host's network stack.
    pub(crate) fn configure(&self, host: usize, setting: &str, value: &str) {
        let done = configure(&self.hosts[host], &[(setting, value)]);
        done.unwrap_or_else(|told| panic!("host {host}: {told}"));
    }

    /// Kills every process in a host.
    pub(crate) fn kill(&self, host: usize) {
        tools::kill(&self.hosts[host]);
    }

    /// Gives a NIC another rate, in Mbit/s.
    pub(crate) fn reshape(&mut self, host: usize, nic: usize, rate: u32) {
        self.spec.hosts[host].nics[nic].rate = rate;
        let ends = [(&self.hosts[host], format!("eth{nic}")), (&self.switches, port(host, nic))];
        for (namespace, device) in ends {
            let done = in_namespace("tc", namespace, &[class("change", &device, 1, rate)]);
            done.unwrap_or_else(|told| panic!("host {host}, NIC {nic}: {told}"));
        }
    }

    /// Limits the data from a host to one other, in Mbit/s: a slow link where all others are fast.
    pub(crate) fn narrow(&self, from: usize, to: usize, rate: u32) {
        let to = Spec::address(to, 0, Family::V4);
        let lines = [
            class("add", "eth0", 2, rate),
            format!("qdisc add dev eth0 parent 1:2 {QUEUE}"),
            format!("filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {to}/32 flowid 1:2"),
        ];
        let done = in_namespace("tc", &self.hosts[from], &lines);
        done.unwrap_or_else(|told| panic!("host {from}: {told}"));
    }

    /// Drops the data from a host to one other without any notice, by a wrong entry in its table of neighbours.
    pub(crate) fn swallow(&self, from: usize, to: usize) {
        let to = Spec::address(to, 0, Family::V4);
        let line = format!("neigh replace {to} lladdr 02:00:00:00:00:01 dev eth0 nud permanent");
        let done = in_namespace("ip", &self.hosts[from], &[line]);
        done.unwrap_or_else(|told| panic!("host {from}: {told}"));
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Runs `work` on a thread inside a host.
    pub(crate) fn within<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> T {
        host::enter(&self.hosts[host], work)
    }

    /// Starts a command inside a host.
    pub(crate) fn spawn(&self, host: usize, command: Command) -> Guest {
        Guest::inside(&self.hosts[host], command)
    }

    /// The name of a host's namespace, for `ip netns exec`.
    pub(crate) fn namespace(&self, host: usize) -> &str {
        &self.hosts[host]
    }

    /// The processes in a host.
    pub(crate) fn inhabitants(&self, host: usize) -> Vec<i32> {
        tools::inhabitants(&self.hosts[host])
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cables.clear();
        for namespace in self.hosts.iter().chain([&self.switches]) {
            tools::remove(namespace);
        }
    }
}

/// The switch's end of a NIC's cable.
fn port(host: usize, nic: usize) -> String {
    format!("h{host}n{nic}")
}

fn class(verb: &str, device: &str, id: u32, rate: u32) -> String {
    format!(
        "class {verb} dev {device} parent 1: classid 1:{id} htb rate {rate}mbit burst 16kb cburst 16kb quantum 60000"
    )
}
