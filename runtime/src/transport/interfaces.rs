//! The network interfaces of a machine that carry data if the user names none.
//!
//! The principal function is [`ways`]. It returns the interface through which the ranks found each other, and every
//! other interface that adds bandwidth, as far as the machine can tell by itself. Peers try all these addresses when
//! they connect, and do without an address that does not answer.
//!
//! Of two interfaces in one network only one counts. The system routes by destination, so all data would leave through
//! one of them, unless there are routes by source. [`say_unused`] warns about the other one.

use ipnet::IpNet;
use std::net::IpAddr;

/// The most addresses at which a rank listens.
pub(crate) const MOST_WAYS: usize = 16;

/// An address of this machine, and the interface that has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// The name that the system gives the interface.
    pub name: String,
    /// One of its addresses.
    pub address: IpAddr,
    /// How many bits of the address are the network's.
    pub prefix: u8,
    /// The devices through which its frames leave: itself, or the devices below a bridge, a bond or a VLAN.
    pub devices: Vec<String>,
    /// Its nominal rate in Mbit/s, if it has one.
    pub mbits: Option<u32>,
}

impl Interface {
    /// The network of the interface. With a prefix that is longer than the address, the network is this address alone.
    fn network(&self) -> IpNet {
        IpNet::new(self.address, self.prefix).unwrap_or(self.address.into()).trunc()
    }

    /// Whether two interfaces share what limits them: a device, or a network, in which the system uses only one.
    fn shares_with(&self, other: &Self) -> bool {
        self.shares_device_with(other) || self.network() == other.network()
    }

    fn shares_device_with(&self, other: &Self) -> bool {
        self.name == other.name || self.devices.iter().any(|device| other.devices.contains(device))
    }
}

/// The address `first`, and one address of every interface in `found` that adds bandwidth. Such an interface shares no
/// device and no network with the others, and has at least half the nominal rate of the first one. Only `first`, if it
/// is a loopback address or not in `found`.
pub(crate) fn ways(first: IpAddr, found: &[Interface]) -> Vec<IpAddr> {
    let mut addresses = vec![first];
    let mut taken: Vec<&Interface> = found.iter().filter(|interface| interface.address == first).collect();
    if first.is_loopback() || taken.is_empty() {
        return addresses;
    }
    let least = taken[0].mbits.map(|mbits| mbits / 2);
    // Addresses of the family of `first` come first, because all ranks can reach this family.
    let (alike, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|interface| interface.address.is_ipv4() == first.is_ipv4());
    for interface in alike.into_iter().chain(others) {
        let is_slow = interface.mbits.is_some_and(|mbits| Some(mbits) < least);
        let is_taken = taken.iter().any(|taken| interface.shares_with(taken));
        if !interface.address.is_loopback() && !is_slow && !is_taken && addresses.len() < MOST_WAYS {
            taken.push(interface);
            addresses.push(interface.address);
        }
    }
    addresses
}

/// Warns about each interface that carries no data only because it shares a network with one that does.
pub(crate) fn say_unused(chosen: &[IpAddr], found: &[Interface]) {
    for (unused, used) in shadowed(chosen, found) {
        let (name, address, used_name, used_address) = (&unused.name, unused.address, &used.name, used.address);
        tracing::warn!(
            "{name} ({address}) carries no data: it is in one network with {used_name} ({used_address}), through which the \
             system sends all that goes there; where it has routes by source, --interface {used_name},{name} uses both"
        );
    }
}

/// Each such interface, with the interface that the system uses instead.
fn shadowed<'f>(chosen: &[IpAddr], found: &'f [Interface]) -> Vec<(&'f Interface, &'f Interface)> {
    let used = || found.iter().filter(|interface| chosen.contains(&interface.address));
    let unused = found.iter().filter(|interface| !used().any(|used| used.shares_device_with(interface)));
    let pairs = unused.filter_map(|unused| Some((unused, used().find(|used| used.network() == unused.network())?)));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, address: &str, devices: &[&str], mbits: Option<u32>) -> Interface {
        let (address, prefix) = address.split_once('/').unwrap();
        Interface {
            name: name.to_owned(),
            address: address.parse().unwrap(),
            prefix: prefix.parse().unwrap(),
            devices: devices.iter().map(|&device| device.to_owned()).collect(),
            mbits,
        }
    }

    fn chosen(first: &str, found: &[Interface]) -> Vec<String> {
        ways(first.parse().unwrap(), found).iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn every_interface_is_a_way_but_those_that_share_one() {
        let found = [
            seen("lo", "127.0.0.1/8", &["lo"], None),
            seen("eth0", "10.0.0.1/24", &["eth0"], Some(10_000)),
            seen("eth0", "10.0.9.1/24", &["eth0"], Some(10_000)),
            seen("eth0", "fd00::1/64", &["eth0"], Some(10_000)),
            seen("eth0.7", "10.0.7.1/24", &["eth0"], Some(10_000)),
            seen("eth1", "10.0.0.2/24", &["eth1"], Some(10_000)),
            seen("eth2", "10.0.2.1/24", &["eth2"], Some(25_000)),
            seen("eth3", "10.0.3.1/24", &["eth3"], Some(1000)),
            seen("ib0", "fd01::1/64", &["ib0"], None),
            seen("ib0", "10.0.4.1/24", &["ib0"], None),
            seen("bond0", "10.0.5.1/24", &["eth4", "eth5"], Some(20_000)),
            seen("eth5", "10.0.6.1/24", &["eth5"], None),
        ];
        assert_eq!(chosen("10.0.0.1", &found), ["10.0.0.1", "10.0.2.1", "10.0.4.1", "10.0.5.1"]);
        assert_eq!(chosen("fd00::1", &found), ["fd00::1", "fd01::1", "10.0.0.2", "10.0.2.1", "10.0.5.1"]);
        // Compared with this slow interface, all others are fast enough.
        assert_eq!(chosen("10.0.3.1", &found).len(), 5);
    }

    #[test]
    fn two_devices_in_one_network_are_one_way_and_that_is_said() {
        let found = [
            seen("eth0", "10.0.0.1/24", &["eth0"], Some(10_000)),
            seen("eth0", "10.0.0.9/24", &["eth0"], Some(10_000)),
            seen("eth0.7", "10.0.0.7/24", &["eth0"], Some(10_000)),
            seen("eth1", "10.0.0.2/24", &["eth1"], Some(10_000)),
            seen("eth2", "10.0.2.1/24", &["eth2"], Some(10_000)),
            seen("eth3", "10.0.3.1/24", &["eth3"], Some(1000)),
        ];
        let ways = ways("10.0.0.1".parse().unwrap(), &found);
        assert_eq!(ways, [found[0].address, found[4].address]);
        let names: Vec<_> = shadowed(&ways, &found).iter().map(|(unused, used)| (&*unused.name, &*used.name)).collect();
        assert_eq!(names, [("eth1", "eth0")]);
        assert!(shadowed(&[found[0].address, found[3].address], &found).is_empty());
    }

    #[test]
    fn there_is_one_way_where_nothing_is_known_of_it() {
        let found = [seen("lo", "127.0.0.1/8", &["lo"], None), seen("eth0", "10.0.0.1/24", &["eth0"], None)];
        assert_eq!(chosen("127.0.0.1", &found), ["127.0.0.1"]);
        assert_eq!(chosen("10.1.1.1", &found), ["10.1.1.1"]);
        assert_eq!(chosen("10.0.0.1", &found), ["10.0.0.1"]);
    }
}
