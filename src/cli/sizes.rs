//! Lists of sizes: `1KB,64KB,1MB`, `1KB..1GB`, `1KB..1GB:4`, and combinations of these.

use super::values::size;

/// The default factor between the sizes of a range.
const FACTOR: u64 = 2;
/// The most sizes of a list; a longer list is a mistake.
const MOST: usize = 256;

/// Sizes in bytes, ascending, each once; never empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SizeList(pub Vec<u64>);

impl std::str::FromStr for SizeList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for item in text.split(',') {
            match item.split_once("..") {
                Some((from, to)) => range(from, to, &mut sizes)?,
                None => sizes.push(size(item)?),
            }
            if sizes.len() > MOST {
                return Err(format!("more than {MOST} sizes"));
            }
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self(sizes))
    }
}

/// The first size, its multiples by powers of the factor that are below the last size, and the last size.
fn range(from: &str, to: &str, sizes: &mut Vec<u64>) -> Result<(), String> {
    let (to, factor) = match to.split_once(':') {
        Some((to, factor)) => {
            (to, factor.strip_prefix('x').unwrap_or(factor).parse::<u64>().ok().filter(|&factor| factor >= 2))
        }
        None => (to, Some(FACTOR)),
    };
    let factor = factor.ok_or("expected a factor from 2 after `:`, such as 1KB..1GB:4")?;
    let (first, last) = (size(from)?, size(to)?);
    if first == 0 {
        return Err("a range starts above 0".to_owned());
    }
    if first > last {
        return Err("the range must end at or above its start".to_owned());
    }
    let below = std::iter::successors(Some(first), |size| size.checked_mul(factor)).take_while(|&size| size < last);
    sizes.extend(below.chain([last]));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let sizes = |text: &str| text.parse::<SizeList>().map(|list| list.0);
        assert_eq!(sizes("1KB..1MB:4"), Ok(vec![1000, 4000, 16_000, 64_000, 256_000, 1_000_000]));
        assert_eq!(sizes("1K..3M:x16"), Ok(vec![1000, 16_000, 256_000, 3_000_000]));
        assert_eq!(sizes("1KiB..8KiB"), Ok(vec![1024, 2048, 4096, 8192]));
        assert_eq!(sizes("1MB,64KB,1KB,1MB"), Ok(vec![1000, 64_000, 1_000_000]));
        assert_eq!(sizes("8..8,0"), Ok(vec![0, 8]));
        for wrong in ["", "1KB..", "1MB..1KB", "0..1KB", "1KB..1MB:x1", "1KB..1MB:1", "1KB..1MB:", "1..2,", "1KB,two"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }
}
