//! `ip` and `tc`: checks whether this computer can build clusters at all, runs them, and removes what killed tests have
//! left.

use super::host::enter;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The prefix of the names of all our namespaces; the number of the process that made it and its purpose follow.
const PREFIX: &str = "antiphon-";

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";

/// Why there can be no shaped cluster here; `None` if there can. The first call tries everything that a cluster needs.
pub(crate) fn missing() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON.get_or_init(|| attempt().err()).clone()
}

fn attempt() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root".to_owned());
    }
    for tool in ["ip", "tc"] {
        let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.map_err(|_| format!("`{tool}` is not installed (Debian: iproute2)"))?;
    }
    sweep();
    let trial = namespace("trial");
    let tried = try_all(&trial);
    remove(&trial);
    tried
}

fn try_all(trial: &str) -> Result<(), String> {
    ip(&[&format!("netns add {trial}")]).map_err(|told| format!("no network namespaces: {told}"))?;
    in_namespace("ip", trial, &["link add dev eth0 type veth peer name eth1", "link add dev s0 type bridge"])
        .map_err(|told| format!("no virtual Ethernet or bridges: {told}"))?;
    in_namespace("tc", trial, &["qdisc add dev eth0 root handle 1: htb", "qdisc add dev eth1 root bfifo limit 1000"])
        .map_err(|told| format!("no traffic shaping: {told}"))
}

/// A name for a namespace of this process.
pub(crate) fn namespace(what: &str) -> String {
    format!("{PREFIX}{}-{what}", std::process::id())
}

/// `ip`, with one command a line.
pub(crate) fn ip(commands: &[impl AsRef<str>]) -> Result<(), String> {
    batch(Command::new("ip"), commands)
}

/// `ip` or `tc` inside a namespace, with one command a line.
pub(crate) fn in_namespace(tool: &str, namespace: &str, commands: &[impl AsRef<str>]) -> Result<(), String> {
    let mut command = Command::new(tool);
    command.args(["-n", namespace]);
    batch(command, commands)
}

fn batch(mut command: Command, commands: &[impl AsRef<str>]) -> Result<(), String> {
    let text: String = commands.iter().map(|line| format!("{}\n", line.as_ref())).collect();
    let mut run = || {
        command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // The input is closed at the end of the statement, so that the tool sees its end.
        child.stdin.take().expect("stdin is a pipe").write_all(text.as_bytes())?;
        child.wait_with_output()
    };
    let output = run().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{} (of: {})", told.trim(), text.trim())) }
}

/// Kills the processes of a namespace and removes its name; the kernel then removes its content.
pub(crate) fn remove(namespace: &str) {
    kill(namespace);
    // If making the namespace failed, there is nothing to remove.
    drop(ip(&[format!("netns del {namespace}")]));
}

/// Kills the processes of a namespace.
pub(crate) fn kill(namespace: &str) {
    for pid in inhabitants(namespace) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// The processes in a namespace.
pub(crate) fn inhabitants(namespace: &str) -> Vec<i32> {
    let listed = Command::new("ip").args(["netns", "pids", namespace]).stderr(Stdio::null()).output();
    let text = listed.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Removes the namespaces of processes that have ended.
pub(crate) fn sweep() {
    let Ok(names) = std::fs::read_dir(NAMES) else { return };
    let names: BTreeSet<String> =
        names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).filter(|name| is_stale(name)).collect();
    names.iter().for_each(|name| remove(name));
}

fn is_stale(name: &str) -> bool {
    let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    maker.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// Writes settings of the kernel's network stack inside a namespace.
pub(crate) fn configure(namespace: &str, settings: &[(&str, &str)]) -> Result<(), String> {
    enter(namespace, || {
        settings.iter().try_for_each(|(name, value)| {
            let path = Path::new("/proc/sys/net").join(name);
            std::fs::write(&path, value).map_err(|error| format!("{}: {error}", path.display()))
        })
    })
}
