//! How ranks, and groups of them, are written on the command line: `0-3,6`, `0-3/4-7`.

use topology::Rank;
use topology::quantity::{RankSpan, listed};

/// Ranks in ascending order, each once; a range includes both its ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RankList(pub Vec<Rank>);

/// `0,2,4/1,3,5`, `0-3/4-7`, or `size=4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Split {
    /// These groups, each in ascending order.
    Listed(Vec<Vec<Rank>>),
    /// Neighbours in groups of this size; the last group may be smaller.
    Size(usize),
}

impl Split {
    /// The groups, for this many ranks.
    pub(crate) fn groups(&self, ranks: usize) -> Vec<Vec<Rank>> {
        match self {
            Self::Listed(groups) => groups.clone(),
            Self::Size(size) => {
                let all: Vec<Rank> = (0..ranks).map(Rank::from_index).collect();
                all.chunks(*size).map(<[Rank]>::to_vec).collect()
            }
        }
    }

    /// How many ranks there must be at least.
    pub(crate) fn least_ranks(&self) -> Option<usize> {
        match self {
            Self::Listed(groups) => groups.iter().flatten().max().map(|rank| rank.index() + 1),
            Self::Size(_) => None,
        }
    }
}

impl std::str::FromStr for Split {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(size) = text.strip_prefix("size=") {
            let size = size.parse().ok().filter(|&size| size > 0);
            return size.map(Self::Size).ok_or_else(|| format!("`{text}`: a group has one rank or more"));
        }
        let groups = text.split('/').map(|group| group.parse::<RankList>().map(|list| list.0));
        let groups = groups.collect::<Result<_, _>>().map(Self::Listed);
        groups.map_err(|error| format!("{error}; groups are such as 0,2/1,3 or 0-3/4-7"))
    }
}

impl std::str::FromStr for RankList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let spans = text.split(',').map(|part| part.parse::<RankSpan>().map_err(|error| error.to_string()));
        let ranks = listed(spans.collect::<Result<Vec<_>, _>>()?)?;
        let mut ranks: Vec<Rank> = ranks.into_iter().map(Rank).collect();
        ranks.sort_unstable();
        match ranks.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("`{text}` names rank {} twice", pair[0])),
            None => Ok(Self(ranks)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed_or_in_ranges_with_both_ends() {
        let ranks = |text: &str| text.parse::<RankList>().map(|list| list.0.iter().map(|rank| rank.0).collect());
        assert_eq!(ranks("6,0-3"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(ranks("2-2"), Ok(vec![2]));
        // The old form of ranges in YAML files, which excludes the end.
        assert!(ranks("0..4").is_err_and(|error: String| error.contains("0-3")));
    }

    #[test]
    fn groups_are_listed_or_counted() {
        let groups = |text: &str| {
            let groups = text.parse::<Split>()?.groups(7);
            Ok(groups.iter().map(|group| group.iter().map(|rank| rank.0).collect()).collect())
        };
        let cases: [(&str, &[&[u32]]); 6] = [
            ("0,2,4,6/1,3,5", &[&[0, 2, 4, 6], &[1, 3, 5]]),
            ("0-2/3-6", &[&[0, 1, 2], &[3, 4, 5, 6]]),
            ("5,0-1", &[&[0, 1, 5]]),
            ("4", &[&[4]]),
            ("size=3", &[&[0, 1, 2], &[3, 4, 5], &[6]]),
            ("0-3/2-5", &[&[0, 1, 2, 3], &[2, 3, 4, 5]]),
        ];
        for (text, expected) in cases {
            assert_eq!(
                groups(text),
                Ok::<Vec<Vec<u32>>, String>(expected.iter().map(|group| group.to_vec()).collect())
            );
        }
        for text in ["", "0/", "0,,1", "3-1", "a", "0,1,0", "0-2,1", "size=0", "size=x", "-1", "0-4294967295"] {
            assert!(groups(text).is_err(), "{text}");
        }
        assert_eq!("0-3/9".parse::<Split>().unwrap().least_ranks(), Some(10));
    }
}
