//! A cluster as data: its hosts, their NICs, and the switches between them; and the same cluster as
//! `antiphon-cluster/1`, for plans that know its true rates.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

/// TCP payload over bits on the wire: 1448 of the 1514 bytes of a frame over IPv4, 20 fewer over IPv6.
const PAYLOAD: f64 = 1448.0 / 1514.0;
const PAYLOAD_IPV6: f64 = 1428.0 / 1514.0;

/// A cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    pub hosts: Vec<Host>,
    /// The switches; at least one.
    pub switches: Vec<Switch>,
    /// Whether hosts keep the defaults of a system: its congestion control, segments of 64 KB, and buckets of that
    /// size.
    pub coarse: bool,
}

/// One machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub nics: Vec<Nic>,
}

/// A network interface with one rate for both directions. The `i`-th interface of every host is in subnet `i`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nic {
    /// Mbit/s on the wire.
    pub rate: u32,
    /// The switch that it is connected to.
    pub switch: usize,
    /// The delay of the cable for every frame, one way.
    pub delay: Duration,
}

/// A switch; what it forwards between its ports is not limited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    /// The line to another switch, which all its ports share.
    pub uplink: Option<Uplink>,
}

/// A line between two switches with one rate for both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uplink {
    /// The upper switch.
    pub to: usize,
    /// Mbit/s on the wire.
    pub rate: u32,
}

/// IPv4 or IPv6 addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Nic {
    pub(crate) fn new(rate: u32) -> Self {
        Self { rate, switch: 0, delay: Duration::ZERO }
    }
}

impl Spec {
    /// One switch and a host for each rate (Mbit/s).
    pub(crate) fn star(rates: &[u32]) -> Self {
        let hosts = rates.iter().map(|&rate| Host { nics: vec![Nic::new(rate)] }).collect();
        Self { hosts, switches: vec![Switch::default()], coarse: false }
    }

    /// The same with the defaults of a system.
    pub(crate) fn coarse(self) -> Self {
        Self { coarse: true, ..self }
    }

    /// A core switch, and behind it racks of `hosts` hosts each; Mbit/s of NICs and of each rack's up-link.
    pub(crate) fn racks(racks: usize, hosts: usize, nic: u32, uplink: u32) -> Self {
        let mut switches = vec![Switch::default()];
        switches.resize(racks + 1, Switch { uplink: Some(Uplink { to: 0, rate: uplink }) });
        let nic = |rack: usize| Nic { switch: rack + 1, ..Nic::new(nic) };
        let hosts = (0..racks).flat_map(|rack| (0..hosts).map(move |_| Host { nics: vec![nic(rack)] })).collect();
        Self { hosts, switches, coarse: false }
    }

    /// The address of a NIC.
    pub(crate) fn address(host: usize, nic: usize, family: Family) -> IpAddr {
        let (host, nic) = (host as u16 + 1, nic as u16);
        match family {
            Family::V4 => IpAddr::from([10, 77, nic as u8, host as u8]),
            Family::V6 => IpAddr::from([0xfd77, 0, 0, nic, 0, 0, 0, host]),
        }
    }

    /// The payload of TCP at this rate, in bytes per second.
    pub(crate) fn payload(rate: u32, family: Family) -> f64 {
        let share = if family == Family::V4 { PAYLOAD } else { PAYLOAD_IPV6 };
        f64::from(rate) * 1e6 / 8.0 * share
    }

    /// The first NICs as `antiphon-cluster/1`: machines of `ranks` ranks, ports that carry TCP's payload at
    /// their NIC's rate, up-links as leaves. A message occupies its ports for `alpha` in all.
    pub(crate) fn topology(&self, ranks: usize, alpha: Duration) -> String {
        let bandwidth = |rate: u32| format!("bandwidth: {}GBps", Self::payload(rate, Family::V4) / 1e9);
        let mut text = String::from("format: antiphon-cluster/1\nname: shaped\nmachines:\n");
        let mut line = |words: String| writeln!(text, "{words}").expect("text grows");
        line(format!("- {{spec: \"clique:{ranks},bandwidth=10GBps,alpha=1us\", count: {}}}", self.hosts.len()));
        line("networks:\n  ethernet:".to_owned());
        let up = self.switches.iter().enumerate().filter_map(|(id, switch)| switch.uplink.map(|line| (id, line)));
        let leaves: Vec<_> =
            up.map(|(id, line)| format!("rack{id}: {{alpha: 0us, {}}}", bandwidth(line.rate))).collect();
        if !leaves.is_empty() {
            line(format!("    leaves: {{{}}}", leaves.join(", ")));
        }
        line("    ports:".to_owned());
        for (index, host) in self.hosts.iter().enumerate() {
            let nic = &host.nics[0];
            let leaf = self.switches[nic.switch].uplink.map(|_| format!(", leaf: rack{}", nic.switch));
            // The α of a port is for half of the path.
            let alpha = alpha.as_secs_f64() * 1e6 / 2.0;
            let (rate, leaf) = (bandwidth(nic.rate), leaf.unwrap_or_default());
            line(format!("    - {{machines: [{index}], ranks: [0..{ranks}], alpha: {alpha}us, {rate}{leaf}}}"));
        }
        text
    }
}
