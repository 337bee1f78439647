//! Finds the addresses of the interfaces that a user names, and all interfaces of the machine.
//!
//! The principal functions are [`addresses`] and [`found`]. An interface with several addresses counts once: data is
//! striped over the addresses, and two addresses of one interface would only share it.

use super::{LaunchError, LaunchResult};
use if_addrs::IfAddr;
use ipnet::IpNet;
use runtime::{Interface, is_for_one_link};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// An address of an interface of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
struct InterfaceAddress {
    name: String,
    address: IpAddr,
}

/// The addresses of these interfaces, in the order in which they are named; empty if none is named.
///
/// # Errors
/// If a name, address or network does not belong to this machine; the hint lists what does.
pub fn addresses(named: &[String]) -> LaunchResult<Vec<IpAddr>> {
    if named.is_empty() {
        return Ok(Vec::new());
    }
    let seen = if_addrs::get_if_addrs();
    let seen = seen.map_err(|error| LaunchError::new(format!("interfaces cannot be listed: {error}")))?;
    // An address that is valid on one link only means nothing without the link.
    let global = seen.into_iter().filter(|interface| !interface.is_link_local());
    let seen: Vec<InterfaceAddress> =
        global.map(|interface| InterfaceAddress { address: interface.ip(), name: interface.name }).collect();
    chosen(named, &seen)
}

/// The interfaces of this machine that are up and lead to other machines, if the system tells; otherwise empty.
pub fn found() -> Vec<Interface> {
    let seen = if_addrs::get_if_addrs().unwrap_or_default();
    let useful = seen.into_iter().filter(|seen| seen.is_oper_up() && !seen.is_loopback() && !seen.is_link_local());
    let interface = |seen: if_addrs::Interface| {
        let (address, prefix) = match &seen.addr {
            IfAddr::V4(address) => (address.ip.into(), address.prefixlen),
            IfAddr::V6(address) => (address.ip.into(), address.prefixlen),
        };
        let folder = device(&seen.name, seen.index);
        let mbits =
            folder.as_ref().and_then(|folder| read(&folder.join("speed"))?.parse().ok()).filter(|&mbits| mbits > 0);
        let devices = folder.map_or_else(|| vec![seen.name.clone()], |folder| below(&folder, &seen.name));
        Interface { name: seen.name, address, prefix, devices, mbits }
    };
    useful.map(interface).collect()
}

/// The kernel's folder of a device, if it is this device: a namespace may see the devices of another namespace.
fn device(name: &str, index: Option<u32>) -> Option<PathBuf> {
    let folder = Path::new("/sys/class/net").join(name);
    (read(&folder.join("ifindex"))?.parse().ok() == index).then_some(folder)
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// The devices below a bridge, a bond or a VLAN; for other devices, the device itself.
fn below(folder: &Path, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let lower = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
    let devices: Vec<String> = lower.flat_map(|name| below(&folder.with_file_name(&name), &name)).collect();
    if devices.is_empty() { vec![name.to_owned()] } else { devices }
}

fn chosen(named: &[String], seen: &[InterfaceAddress]) -> LaunchResult<Vec<IpAddr>> {
    let mut all = Vec::new();
    for name in named {
        let found: Vec<IpAddr> = match (name.parse::<IpAddr>(), name.parse::<IpNet>()) {
            (Ok(address), _) if is_for_one_link(address) => {
                return Err(LaunchError::new(format!("interface {name}: it is valid on one link only")));
            }
            // Whether the machine has this address is found out when a socket listens there.
            (Ok(address), _) => vec![address],
            (_, Ok(network)) => one_of_each(seen.iter().filter(|seen| network.contains(&seen.address))),
            _ => one_of_each(seen.iter().filter(|seen| seen.name == *name)),
        };
        if found.is_empty() {
            let mut known: Vec<String> = seen.iter().map(|seen| format!("{} {}", seen.name, seen.address)).collect();
            known.sort();
            let what = format!("interface {name}: this machine has no such interface, address or network");
            return Err(LaunchError::new(what).hint(format!("it has {}", known.join(", "))));
        }
        all.extend(found.into_iter().filter(|address| !all.contains(address)).collect::<Vec<_>>());
    }
    Ok(all)
}

/// The first IPv4 address of each interface, or its first IPv6 address.
fn one_of_each<'a>(seen: impl Iterator<Item = &'a InterfaceAddress>) -> Vec<IpAddr> {
    let mut chosen: Vec<InterfaceAddress> = Vec::new();
    for seen in seen {
        match chosen.iter_mut().find(|chosen| chosen.name == seen.name) {
            None => chosen.push(seen.clone()),
            Some(chosen) if chosen.address.is_ipv6() && seen.address.is_ipv4() => chosen.address = seen.address,
            Some(_) => {}
        }
    }
    chosen.into_iter().map(|seen| seen.address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_by_name_address_and_network() {
        let seen = |(name, address): (&str, &str)| InterfaceAddress {
            name: name.to_owned(),
            address: address.parse().unwrap(),
        };
        let seen = [
            ("lo", "127.0.0.1"),
            ("eth0", "fd00::1"),
            ("eth0", "10.0.0.1"),
            ("eth0", "10.0.0.9"),
            ("eth1", "10.1.0.1"),
            ("ib0", "fd01::5"),
        ]
        .map(seen);
        let cases: [(&str, Option<&[&str]>); 12] = [
            ("eth0", Some(&["10.0.0.1"])),
            ("ib0,eth1", Some(&["fd01::5", "10.1.0.1"])),
            ("10.0.0.9", Some(&["10.0.0.9"])),
            ("10.0.0.0/8", Some(&["10.0.0.1", "10.1.0.1"])),
            ("10.1.0.0/16,eth0,eth1", Some(&["10.1.0.1", "10.0.0.1"])),
            ("fd00::/8", Some(&["fd00::1", "fd01::5"])),
            ("0.0.0.0/0", Some(&["127.0.0.1", "10.0.0.1", "10.1.0.1"])),
            ("10.1.0.1/32", Some(&["10.1.0.1"])),
            ("eth7", None),
            ("192.168.0.0/16", None),
            ("10.0.0.0/33", None),
            ("eth0,", None),
        ];
        for (list, expected) in cases {
            let named: Vec<String> = list.split(',').map(str::to_owned).collect();
            let found = chosen(&named, &seen).ok();
            let expected = expected.map(|all| all.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>());
            assert_eq!(found, expected, "{list}");
        }
        let error = chosen(&["eth7".to_owned()], &seen).unwrap_err().to_string();
        assert!(error.contains("eth7") && error.contains("ib0 fd01::5"), "{error}");
        let error = chosen(&["fe80::1".to_owned()], &seen).unwrap_err().to_string();
        assert!(error.contains("fe80::1: it is valid on one link only"), "{error}");
    }

    #[test]
    fn this_machine_has_a_loopback() {
        assert_eq!(addresses(&["127.0.0.0/8".to_owned()]).unwrap(), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(addresses(&[]).unwrap().is_empty());
    }
}
