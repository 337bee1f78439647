//! Which links a sketch leaves, for whose chunks, and in which stages: `links`, `relays`, `senders`, `stages`,
//! `connections`.
//!
//! The principal functions are [`Resolver::forbidden_links`] and [`Resolver::owners`]. A rule is looked up in the
//! adjacency lists of the ranks that it names. So it costs the degree of these ranks, not the size of the topology. A
//! rule that names no link is an error, because it is nearly always a slip.

use super::body::{ConnectionsAsWritten, LinkClass, LinkPattern, LinkRule, Relays, SwitchWish};
use super::error::{Mistake, SketchError};
use super::file::line_of;
use super::resolve::{Numbering, SketchResolver};
use crate::problem::{ConnectionPolicy, ConnectionWish, Constraints, Stages};
use schedule::RankSet;
use serde_saphyr::{Location, Spanned};
use std::collections::{BTreeMap, BTreeSet};
use topology::{LinkId, Rank, Topology};

/// The most entries of one list of rules.
const MAX_RULES: usize = 10_000;
/// The most links that all rules together look at, which takes about a second. Otherwise a short list of rules for a large
/// machine could take hours.
const MOST_LOOKED_AT: usize = 1 << 28;

impl SketchResolver<'_> {
    /// For each link, the line that forbids it. The first to forbid a link counts, in the order `forbid`, `relays`,
    /// `allow_only`, `stages`.
    pub(super) fn forbidden_links(&self, stages: Option<&Stages>) -> Result<Vec<Option<u32>>, SketchError> {
        let body = &self.file.body;
        let mut forbidden = vec![None; self.topology.links().len()];
        if let Some(rules) = body.links.as_ref().and_then(|links| links.forbid.as_ref()) {
            self.check_count(rules, "links.forbid", "forbid nothing")?;
            for rule in &rules.value {
                for link in self.links_of(rule)? {
                    forbid(&mut forbidden, link, line_of(rule));
                }
            }
        }
        if let Some(relays) = &body.relays {
            self.forbid_all_but_relays(relays, &mut forbidden)?;
        }
        if let Some(rules) = body.links.as_ref().and_then(|links| links.allow_only.as_ref()) {
            self.check_count(rules, "links.allow_only", "forbid every link")?;
            let mut allowed = vec![false; forbidden.len()];
            for rule in &rules.value {
                self.links_of(rule)?.into_iter().for_each(|link| allowed[link.index()] = true);
            }
            let line = line_of(rules);
            for (forbidden, _) in forbidden.iter_mut().zip(&allowed).filter(|(_, allowed)| !**allowed) {
                forbidden.get_or_insert(line);
            }
        }
        if let Some(stages) = stages {
            let unstaged = forbidden.iter_mut().zip(&stages.of_link).filter(|(_, stages)| **stages == 0);
            unstaged.for_each(|(forbidden, _)| *forbidden = forbidden.or(Some(stages.line)));
        }
        self.check_something_left(&forbidden)?;
        Ok(if forbidden.iter().any(Option::is_some) { forbidden } else { Vec::new() })
    }

    pub(super) fn stages(&self) -> Result<Option<Stages>, SketchError> {
        let Some(rules) = &self.file.body.stages else { return Ok(None) };
        let mistake = match rules.value.len() {
            0 => Some(Mistake::Empty { what: "stages", effect: "forbid every link" }),
            count if count > usize::from(Stages::MOST) => {
                Some(Mistake::TooMany { what: "stages", count, limit: usize::from(Stages::MOST) })
            }
            _ => None,
        };
        if let Some(mistake) = mistake {
            return Err(self.file.error(rules.referenced, mistake));
        }
        let mut of_link = vec![0; self.topology.links().len()];
        for (stage, rule) in rules.value.iter().enumerate() {
            self.links_of(rule)?.into_iter().for_each(|link| of_link[link.index()] |= 1 << stage);
        }
        Ok(Some(Stages { of_link, count: rules.value.len() as u8, line: line_of(rules) }))
    }

    /// The allowed links of every switch on which few or many connections are wanted.
    pub(super) fn connections(&self, constraints: &Constraints) -> Result<Vec<ConnectionWish>, SketchError> {
        let Some(written) = &self.file.body.connections else { return Ok(Vec::new()) };
        let inside = |machine: usize, of: &dyn Fn(Rank) -> bool| -> Vec<LinkId> {
            let joins = |id: &LinkId| {
                let link = self.topology.link(*id);
                !self.topology.crosses_machines(link) && of(link.from) && of(link.to) && constraints.allows_link(*id)
            };
            let machine = &self.topology.machines()[machine];
            let links = machine.iter().flat_map(|&rank| self.topology.outgoing(rank)).copied();
            let mut links: Vec<LinkId> = links.filter(joins).collect();
            links.sort_unstable();
            links
        };
        let machines = 0..self.topology.machines().len();
        let mut wishes = Vec::new();
        let mut wish = |links: Vec<LinkId>, wish: ConnectionPolicy, line: u32| {
            if !links.is_empty() {
                wishes.push(ConnectionWish { links, wish, line });
            }
        };
        match &written.value {
            ConnectionsAsWritten::Everywhere(word) => {
                machines.for_each(|machine| wish(inside(machine, &|_| true), *word, line_of(written)));
            }
            ConnectionsAsWritten::PerSwitch(switches) => {
                self.check_switches(written.referenced, switches)?;
                for switch in switches {
                    let among = self.local_set(&switch.value.among)?;
                    let belongs = |rank: Rank| among.contains(&self.local[rank.index()]);
                    machines.clone().for_each(|machine| {
                        wish(inside(machine, &belongs), switch.value.wish, line_of(switch));
                    });
                }
            }
        }
        Ok(wishes)
    }

    /// Checks that no two switches share a rank: a link could then belong to both.
    fn check_switches(&self, at: Location, switches: &[Spanned<SwitchWish>]) -> Result<(), SketchError> {
        if switches.is_empty() || switches.len() > MAX_RULES {
            let (what, count, limit) = ("connections", switches.len(), MAX_RULES);
            let mistake = match switches.is_empty() {
                true => Mistake::Empty { what, effect: "wish for nothing" },
                false => Mistake::TooMany { what, count, limit },
            };
            return Err(self.file.error(at, mistake));
        }
        let mut seen = BTreeSet::new();
        for rank in switches.iter().flat_map(|switch| &switch.value.among.list) {
            if !seen.insert(self.local_rank(rank)?) {
                let text = format!("local rank {} is on two switches", rank.value);
                return Err(self.file.error(rank.referenced, Mistake::Inconsistent { text }));
            }
        }
        Ok(())
    }

    fn check_something_left(&self, forbidden: &[Option<u32>]) -> Result<(), SketchError> {
        if forbidden.is_empty() || forbidden.iter().any(Option::is_none) {
            return Ok(());
        }
        let links = self.file.body.links.as_ref();
        let lists = links.and_then(|links| links.allow_only.as_ref().or(links.forbid.as_ref()));
        let at = lists.map(|list| list.referenced);
        let at = at.or(self.file.body.relays.as_ref().map(|relays| relays.referenced));
        let at = at.unwrap_or(Location::UNKNOWN);
        Err(self.file.error(at, Mistake::NothingLeft { topology: self.topology_name() }))
    }

    fn check_count<T>(
        &self,
        list: &Spanned<Vec<T>>,
        what: &'static str,
        effect: &'static str,
    ) -> Result<(), SketchError> {
        let mistake = match list.value.len() {
            0 => Mistake::Empty { what, effect },
            count if count > MAX_RULES => Mistake::TooMany { what, count, limit: MAX_RULES },
            _ => return Ok(()),
        };
        Err(self.file.error(list.referenced, mistake))
    }

    /// The links that a rule names, at least one.
    fn links_of(&self, rule: &Spanned<LinkRule>) -> Result<Vec<LinkId>, SketchError> {
        let (links, words) = match &rule.value {
            LinkRule::Class(class) => (self.of_class(*class), class_name(*class).to_owned()),
            LinkRule::Pair { from, to } => {
                let ends = (self.rank(from)?, self.rank(to)?);
                (self.topology.between(ends.0, ends.1).collect(), format!("{} → {}", ends.0, ends.1))
            }
            LinkRule::Pattern(pattern) => (self.matching(rule, pattern)?, "this rule".to_owned()),
        };
        if self.looked_at.get() > MOST_LOOKED_AT {
            let text =
                format!("the rules up to here name ranks with more than {MOST_LOOKED_AT} links; join some rules");
            return Err(self.file.error(rule.referenced, Mistake::Inconsistent { text }));
        }
        if links.is_empty() {
            let nearby = self.nearby(&rule.value);
            let mistake = Mistake::NoSuchLink { rule: words, topology: self.topology_name(), nearby };
            return Err(self.file.error(rule.referenced, mistake));
        }
        Ok(links)
    }

    fn of_class(&self, class: LinkClass) -> Vec<LinkId> {
        self.look_at(self.topology.links().len());
        self.topology.link_ids().filter(|&id| self.is_of_class(id, class)).collect()
    }

    fn is_of_class(&self, id: LinkId, class: LinkClass) -> bool {
        self.topology.crosses_machines(self.topology.link(id)) == (class == LinkClass::BetweenMachines)
    }

    fn matching(&self, rule: &Spanned<LinkRule>, pattern: &LinkPattern) -> Result<Vec<LinkId>, SketchError> {
        let numbering = if pattern.class.is_some() { Numbering::Local } else { Numbering::Global };
        let from = pattern.from.as_ref().map(|ranks| self.ranks(ranks, numbering, "from")).transpose()?;
        let to = pattern.to.as_ref().map(|ranks| self.ranks(ranks, numbering, "to")).transpose()?;
        if (&from, &to, pattern.class) == (&None, &None, None) {
            let text = "a rule needs `from`, `to` or `class`: this one would name every link".to_owned();
            return Err(self.file.error(rule.referenced, Mistake::Inconsistent { text }));
        }
        let mut links = self.joining(from.as_ref(), to.as_ref());
        if pattern.both_ways {
            links.extend(self.joining(to.as_ref(), from.as_ref()));
        }
        links.retain(|&id| pattern.class.is_none_or(|class| self.is_of_class(id, class)));
        Ok(links)
    }

    /// The links from one set of ranks to another; `None` means all ranks.
    fn joining(&self, from: Option<&RankSet>, to: Option<&RankSet>) -> Vec<LinkId> {
        let of = |ranks: &RankSet, links: fn(&Topology, Rank) -> &[LinkId]| -> Vec<LinkId> {
            self.look_at(ranks.iter().map(|&rank| links(self.topology, rank).len()).sum());
            ranks.iter().flat_map(|&rank| links(self.topology, rank)).copied().collect()
        };
        match (from, to) {
            (Some(from), Some(to)) => {
                let mut links = of(from, Topology::outgoing);
                links.retain(|&id| to.has(self.topology.link(id).to));
                links
            }
            (Some(from), None) => of(from, Topology::outgoing),
            (None, Some(to)) => of(to, Topology::incoming),
            (None, None) => {
                self.look_at(self.topology.links().len());
                self.topology.link_ids().collect()
            }
        }
    }

    fn look_at(&self, links: usize) {
        self.looked_at.set(self.looked_at.get() + links);
    }

    /// A hint for a rule that names no link: the links that leave its first sender.
    fn nearby(&self, rule: &LinkRule) -> Option<String> {
        let sender = match rule {
            LinkRule::Pair { from, .. } => from,
            LinkRule::Pattern(LinkPattern { class: None, from: Some(from), .. }) => from.list.first()?,
            LinkRule::Class(_) | LinkRule::Pattern(_) => return None,
        };
        let sender = self.rank(sender).ok()?;
        let receivers: BTreeSet<Rank> =
            self.topology.outgoing(sender).iter().map(|&id| self.topology.link(id).to).collect();
        let list: Vec<String> = receivers.iter().take(16).map(ToString::to_string).collect();
        let more = if receivers.len() > 16 { ", …" } else { "" };
        Some(match list.is_empty() {
            true => format!("no link leaves rank {sender}"),
            false => format!("rank {sender} sends to {}{more}", list.join(", ")),
        })
    }

    /// Forbids every link between machines that `relays` does not name.
    fn forbid_all_but_relays(
        &self,
        relays: &Spanned<Relays>,
        forbidden: &mut [Option<u32>],
    ) -> Result<(), SketchError> {
        let crossings = self.crossings();
        let no_such = |at: Location, rule: String| {
            let nearby = crossings_in_words(&crossings);
            self.file.error(at, Mistake::NoSuchLink { rule, topology: self.topology_name(), nearby })
        };
        let line = line_of(relays);
        match &relays.value {
            Relays::All if crossings.is_empty() => return Err(no_such(relays.referenced, "`all`".to_owned())),
            Relays::All => {}
            Relays::Direct if crossings.keys().all(|(from, to)| from != to) => {
                return Err(no_such(relays.referenced, "`direct` (local rank i to local rank i)".to_owned()));
            }
            Relays::Direct => {
                let others = crossings.iter().filter(|((from, to), _)| from != to);
                others.flat_map(|(_, links)| links).for_each(|link| forbid(forbidden, *link, line));
            }
            Relays::Map(map) => {
                let allowed = self.rank_map(map, relays.referenced, "relays")?;
                for (sender, receivers) in &map.0 {
                    let missing = receivers.list.iter().find(|to| !crossings.contains_key(&(sender.value, to.value)));
                    if let Some(to) = missing {
                        let rule = format!("a relay from local rank {} to local rank {}", sender.value, to.value);
                        return Err(no_such(to.referenced, rule));
                    }
                }
                for ((from, to), links) in &crossings {
                    let line = match allowed.get(from) {
                        Some(entry) if entry.ranks.contains(to) => continue,
                        Some(entry) => entry.line,
                        None => line,
                    };
                    links.iter().for_each(|link| forbid(forbidden, *link, line));
                }
            }
        }
        Ok(())
    }

    /// The links between machines by the local ranks at their ends.
    fn crossings(&self) -> BTreeMap<(u64, u64), Vec<LinkId>> {
        let mut crossings: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for id in self.of_class(LinkClass::BetweenMachines) {
            let link = self.topology.link(id);
            let ends = (self.local[link.from.index()], self.local[link.to.index()]);
            crossings.entry(ends).or_default().push(id);
        }
        crossings
    }

    /// For each link between machines, the ranks whose chunks may use it, and the line that says so.
    ///
    /// `senders` names local ranks. So on its way through a third machine, a chunk leaves through the sender of the
    /// same local number. A reduced chunk travels towards its owner, and uses the links of the sender that is assigned
    /// to this owner.
    pub(super) fn owners(&self, constraints: &Constraints) -> Result<Vec<Option<(RankSet, u32)>>, SketchError> {
        let Some(senders) = &self.file.body.senders else { return Ok(Vec::new()) };
        let assigned = self.rank_map(&senders.value, senders.referenced, "senders")?;
        let usable = |link: &LinkId| constraints.allows_link(*link);
        let crossings = self.crossings();
        let leaves: BTreeSet<u64> =
            crossings.iter().filter(|(_, links)| links.iter().any(usable)).map(|((from, _), _)| *from).collect();
        for (sender, _) in &senders.value.0 {
            if !leaves.contains(&sender.value) {
                return Err(self.file.error(sender.referenced, Mistake::SenderCannotLeave { rank: sender.value }));
            }
        }
        // Chunks of a rank that is assigned to no sender may leave through any sender.
        let named: BTreeSet<u64> = assigned.values().flat_map(|entry| &entry.ranks).copied().collect();
        let free: BTreeSet<u64> = self.local.iter().copied().filter(|local| !named.contains(local)).collect();
        let mut owners = vec![None; self.topology.links().len()];
        for sender in leaves {
            let entry = assigned.get(&sender);
            let line = entry.map_or(line_of(senders), |entry| entry.line);
            let allowed = free.iter().chain(entry.iter().flat_map(|entry| &entry.ranks)).copied().collect();
            let allowed = self.with_local_number(&allowed);
            let links = crossings.range((sender, 0)..=(sender, u64::MAX)).flat_map(|(_, links)| links);
            links.for_each(|link| owners[link.index()] = Some((allowed.clone(), line)));
        }
        Ok(owners)
    }
}

/// Forbids a link. If several lines forbid it, the first of them is kept.
fn forbid(forbidden: &mut [Option<u32>], link: LinkId, line: u32) {
    forbidden[link.index()].get_or_insert(line);
}

fn class_name(class: LinkClass) -> &'static str {
    match class {
        LinkClass::InsideMachine => "inside_machine",
        LinkClass::BetweenMachines => "between_machines",
    }
}

fn crossings_in_words(crossings: &BTreeMap<(u64, u64), Vec<LinkId>>) -> Option<String> {
    if crossings.is_empty() {
        return Some("no link leads from one machine to another".to_owned());
    }
    let pairs: Vec<String> = crossings.keys().take(8).map(|(from, to)| format!("{from} → {to}")).collect();
    let more = if crossings.len() > 8 { ", …" } else { "" };
    Some(format!("between machines there are (local ranks) {}{more}", pairs.join(", ")))
}

#[cfg(test)]
mod tests {
    use crate::sketch::{Sketch, SketchFile};
    use topology::{Rank, Topology, resolve};

    fn resolved(text: &str, spec: &str) -> (Sketch, Topology) {
        let topology = resolve(spec).unwrap();
        let sketch = SketchFile::parse(text, "s.yaml").and_then(|file| file.resolve(&topology));
        (sketch.unwrap_or_else(|error| panic!("{error}")), topology)
    }

    /// The links that a sketch allows, as `from>to`.
    fn allowed(text: &str, spec: &str) -> String {
        let (sketch, topology) = resolved(text, spec);
        let links = topology.link_ids().filter(|&id| sketch.constraints.allows_link(id));
        let names = links.map(|id| format!("{}>{}", topology.link(id).from, topology.link(id).to));
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rules_forbid_what_they_name() {
        for (rules, left) in [
            ("forbid: [[0, 1]]", "0>2 1>0 1>2 2>0 2>1"),
            ("forbid: [[0, 1], [0, 1]]", "0>2 1>0 1>2 2>0 2>1"),
            ("forbid: [{from: 0, to: 1, both_ways: true}]", "0>2 1>2 2>0 2>1"),
            ("forbid: [{from: [0, 1]}]", "2>0 2>1"),
            ("forbid: [{to: 0}]", "0>1 0>2 1>2 2>1"),
            ("forbid: [{to: 0, both_ways: true}]", "1>2 2>1"),
            ("allow_only: [[0, 1], {from: [1, 2], to: [0, 2]}]", "0>1 1>0 1>2 2>0"),
            ("forbid: [[0, 1]], allow_only: [{from: 0}]", "0>2"),
            ("forbid: [{class: inside_machine, from: 2, to: [0, 1]}]", "0>1 0>2 1>0 1>2"),
        ] {
            assert_eq!(allowed(&format!("links: {{{rules}}}"), "clique:3"), left, "{rules}");
        }
    }

    #[test]
    fn relays_select_links_between_machines() {
        let crossing = |relays: &str, spec: &str| {
            let links = allowed(&format!("relays: {relays}\nlinks: {{forbid: [inside_machine]}}"), spec);
            links.split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        let spec = "ndv2x2,costs=taccl-1mb";
        assert_eq!(crossing("{0: [1]}", spec), ["0>9", "8>1"]);
        assert_eq!(crossing("{0: [1, 2], 7: 0}", spec), ["0>9", "0>10", "7>8", "8>1", "8>2", "15>0"]);
        let direct = crossing("direct", spec);
        assert_eq!((direct.len(), &direct[3][..]), (16, "3>11"));
        assert_eq!(crossing("all", spec).len(), 128);
        assert_eq!(crossing("{0: [1]}", "ndv2x4,costs=taccl-1mb").len(), 12);
    }

    #[test]
    fn the_line_that_forbids_is_kept() {
        let text = "relays:\n  0: [1]\n  1: [0]\nlinks:\n  forbid:\n    - [0, 1]\n    - [0, 2]\n";
        let (sketch, topology) = resolved(text, "ndv2x2,costs=taccl-1mb");
        let line = |from, to| {
            let link = topology.between(Rank(from), Rank(to)).next().unwrap();
            sketch.constraints.forbidden[link.index()]
        };
        assert_eq!((line(0, 1), line(0, 2), line(1, 0)), (Some(6), Some(7), None));
        assert_eq!((line(0, 9), line(0, 8), line(1, 9)), (None, Some(2), Some(3)));
        // Rank 5 is no relay, so the line of the whole value of `relays` counts, which begins on line 2.
        assert_eq!(line(5, 12), Some(2));
    }

    #[test]
    fn senders_reserve_their_links_for_owners() {
        let text = "relays: {0: [1], 2: [3]}\nsenders:\n  0: [0, 1, 4]\n  2: [2, 3, 4]\n";
        let (sketch, topology) = resolved(text, "ndv2x2,costs=taccl-1mb");
        let owners = |from, to| {
            let link = topology.between(Rank(from), Rank(to)).next().unwrap();
            let (owners, line) = sketch.constraints.owners[link.index()].clone()?;
            Some((owners.iter().map(|rank| rank.0).collect::<Vec<_>>(), line))
        };
        // Ranks 5, 6 and 7 are assigned to no sender, so both senders may carry their chunks.
        assert_eq!(owners(0, 9), Some((vec![0, 1, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15], 3)));
        assert_eq!(owners(10, 3), Some((vec![2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15], 4)));
        assert_eq!(owners(0, 1), None);
    }

    #[test]
    fn many_rules_for_a_large_machine_are_refused_in_time() {
        let topology = resolve("clique:600").unwrap();
        let text = format!("links: {{forbid: [{}]}}\n", vec!["{from: 0-599, to: 0-598}"; 5000].join(","));
        let error = SketchFile::parse(&text, "s.yaml").unwrap().resolve(&topology).unwrap_err().to_string();
        assert!(error.contains("join some rules"), "{error}");
    }

    #[test]
    fn a_sketch_without_rules_constrains_nothing() {
        let (sketch, _) = resolved("name: free\n", "clique:3");
        assert_eq!(sketch.constraints, crate::problem::Constraints::none());
    }
}
