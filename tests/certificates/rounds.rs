//! Certificates of bounds that count rounds.

use super::*;

/// How many messages can pass some links at once, at most: a few resources that all links use, and links without any.
fn ports(links: &[&Link]) -> usize {
    let mut left: Vec<&&Link> = links.iter().collect();
    let mut count = 0;
    while let Some(link) = left.first() {
        let users = |resource: &usize| left.iter().filter(|other| other.resources.contains(resource)).count();
        match link.resources.iter().copied().max_by_key(users) {
            Some(shared) => left.retain(|other| !other.resources.contains(&shared)),
            None => _ = left.remove(0),
        }
        count += 1;
    }
    count
}

/// How many groups can have data of one of them after so many messages in a row, if each spreads it by its own ports.
fn spread_after(rounds: u64, mut own: Vec<usize>, first: usize, more: usize) -> usize {
    own.sort_unstable_by(|a, b| b.cmp(a));
    (0..rounds).fold(first, |have, _| have + own.iter().take(have).sum::<usize>() + more)
}

/// How many shares of a group can have begun to leave it until a time: what a rank knows grows by its ports inside, from one share on.
fn left_before(time: f64, [alpha_inside, ports_inside]: [f64; 2], [alpha_out, ports_out]: [f64; 2]) -> f64 {
    let (mut left, mut start) = (0.0, time);
    while start >= 0.0 {
        let (mut known, mut now) = (1.0, start);
        while now >= alpha_inside {
            known += known * ports_inside;
            now -= alpha_inside;
        }
        left += known * ports_out;
        start -= alpha_out;
    }
    left
}

/// Checks a bound by rounds where all ranks want everything, `size` bytes together; returns whether bytes count.
fn check_rounds(machine: &Machine, size: f64, bound: &Value) -> bool {
    let certificate = &bound["certificate"];
    let number = |key: &str| certificate[key].as_f64().unwrap();
    let ranks = |list: &Value| -> Vec<usize> {
        list.as_array().unwrap().iter().map(|it| it.as_u64().unwrap() as usize).collect()
    };
    let groups: Vec<Vec<usize>> = match certificate["groups"].as_array() {
        Some(groups) => groups.iter().map(ranks).collect(),
        None => (0..machine.ranks).map(|rank| vec![rank]).collect(),
    };
    let of = |rank: usize| groups.iter().position(|group| group.contains(&rank)).unwrap();
    let between: Vec<&Link> = machine.links.iter().filter(|link| of(link.from) != of(link.to)).collect();
    assert!(between.iter().all(|link| link.occupies), "{bound}");
    let backwards = certificate["backwards"].as_bool().unwrap();
    let ends = |link: &Link| if backwards { (of(link.to), of(link.from)) } else { (of(link.from), of(link.to)) };
    let at = |group: usize, leaves: bool| -> Vec<&Link> {
        let end = |link: &&&Link| if leaves { ends(link).0 == group } else { ends(link).1 == group };
        between.iter().filter(end).copied().collect()
    };
    let own: Vec<usize> = (0..groups.len()).map(|group| ports(&at(group, true))).collect();
    let least = |links: &[&Link]| links.iter().map(|link| link.alpha).fold(f64::INFINITY, f64::min);
    let (rounds, behind) = (number("rounds") as u64, number("rounds_behind") as u64);
    assert!(number("alpha_us") <= least(&between), "{bound}");
    let gathered = number("gathered");
    let before = number("before_us");
    let value = before
        + number("rounds") * number("alpha_us")
        + number("rounds_behind") * number("alpha_behind_us")
        + number("beta_us_per_byte") * gathered;
    assert!(bound["value_us"].as_f64().unwrap() <= value * (1.0 + CLOSE), "{bound}");
    if gathered > 0.0 {
        let most = groups.iter().map(|group| group.len() as f64 * size / machine.ranks as f64).fold(0.0, f64::max);
        assert!(backwards && own.iter().all(|&ports| ports == 1) && behind == 0 && before == 0.0, "{bound}");
        assert!(gathered <= (size - most) * (1.0 + CLOSE) && most * 2f64.powi(rounds as i32 - 1) < size, "{bound}");
        let beta = |link: &&Link| link.resources.iter().map(|&it| machine.resources[it]).fold(link.beta, f64::min);
        assert!(between.iter().map(beta).all(|beta| number("beta_us_per_byte") <= beta), "{bound}");
        return true;
    }
    let start = of(ranks(&certificate["group"])[0]);
    let (mut near, mut have) = (BTreeSet::from([start]), 1);
    for _ in 1..rounds {
        let farther = between.iter().map(|link| ends(link)).filter(|(from, _)| near.contains(from)).map(|it| it.1);
        near = farther.chain(near.clone()).collect();
        have = spread_after(1, own.clone(), have, 0).min(near.len());
    }
    let reached = number("reached") as usize;
    assert!(reached <= groups.len() && have < reached, "{bound}");
    if before > 0.0 {
        let inside = |to: usize| -> Vec<&Link> {
            machine.links.iter().filter(|link| link.to == to && of(link.from) == start).collect()
        };
        assert!(!backwards && groups[start].iter().all(|&to| inside(to).iter().all(|link| link.occupies)), "{bound}");
        let alphas = groups[start].iter().flat_map(|&to| inside(to)).map(|link| link.alpha);
        let most = groups[start].iter().map(|&to| ports(&inside(to))).max().unwrap();
        assert!(number("alpha_inside_us") <= alphas.fold(f64::INFINITY, f64::min), "{bound}");
        assert!(number("ports_inside") >= most as f64, "{bound}");
        let out = [number("alpha_us"), own[start] as f64];
        let left = left_before(before * (1.0 - CLOSE), [number("alpha_inside_us"), number("ports_inside")], out);
        assert!(left < groups[start].len() as f64, "{bound}: {left} shares may leave earlier");
    }
    if behind > 0 {
        let inside = |from: usize, group: usize| -> Vec<&Link> {
            machine.links.iter().filter(|link| link.from == from && of(link.to) == group).collect()
        };
        for group in (0..groups.len()).filter(|&group| group != start) {
            let own = groups[group].iter().map(|&rank| ports(&inside(rank, group))).collect();
            let come = ports(&at(group, false));
            assert!(!backwards && spread_after(behind - 1, own, come, come) < groups[group].len(), "{bound}");
        }
        assert!(number("alpha_behind_us") <= least(&machine.links.iter().collect::<Vec<_>>()), "{bound}");
    }
    false
}

#[test]
fn bounds_by_rounds_follow_from_their_certificates() {
    let mut kinds = BTreeSet::new();
    for spec in ["switch:5,alpha=1us,bandwidth=10GBps", "fat-tree:4x4", "fat-tree:3x5,alpha=2us", "dgx1", "mesh2d:3x4"]
    {
        let machine = Machine::of(spec);
        for share in [1, 1_000_000] {
            let size = machine.ranks as u64 * share;
            let command = format!("bound --topology {spec} --collective allgather --size {size} --json");
            let told = antiphon(&command).ok().json();
            let bounds = told["bounds"].as_array().unwrap();
            for bound in bounds.iter().filter(|bound| bound["name"] == "rounds") {
                let counts_bytes = check_rounds(&machine, size as f64, bound);
                let has = |key: &str| bound["certificate"][key].as_f64().unwrap() > 0.0;
                kinds.insert((counts_bytes, has("rounds_behind"), has("before_us")));
            }
        }
    }
    assert_eq!(Vec::from_iter(kinds), [(false, false, false), (false, true, true), (true, false, false)]);
}
